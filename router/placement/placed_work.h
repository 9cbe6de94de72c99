// What a placed sequence takes of nodes' time, as predicted: tenants' shares of the cluster are
// counted in it (router/core/admission_queue.h). What a node holds already costs nothing, and a
// generated token costs its sequence's part of a step.
// Thread safety: a pure function of its arguments. Units: microseconds.
#pragma once

#include <cstdint>

#include "router/fleet/fleet.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

struct PlacedWork {
  double prompt_us = 0;  // of computing what the chosen node lacks of the prompt
  double token_us = 0;   // of each token, beside what the decode node runs now
};

// Of a prompt of `prompt_tokens` that was placed. Both figures are finite and greater than 0,
// whatever nodes say of themselves, so that each placement raises its tenant's counter.
PlacedWork WorkOf(const Placement& placement, int64_t prompt_tokens, const Fleet& fleet);

}  // namespace tandem::router
