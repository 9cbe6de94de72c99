// Chooses the nodes of a request by predicted times: of all pairs of a prefill and a decode node,
// and of all decode nodes alone, the one with the least cost (predicted_times.h). Choices that are
// equal within the model's error are drawn from at random, so that requests and routers that see
// the same reports do not all pick the same node.
//
// Thread safety: none; PairPlacement owns it, on the core's strand.
// Invariants: keeps no state; draws from `random` once for a placement at most.
// Cost: at most 16 nodes of each role are weighed, and at most 272 choices compared.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/runtime/random.h"
#include "router/fleet/fleet.h"
#include "router/placement/candidate.h"
#include "router/placement/predicted_times.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class CostPlacement {
 public:
  struct Limits {
    // The first token within this time from now.
    absl::Duration first_token = absl::InfiniteDuration();
    bool explains = false;    // fills Weighed's lists
    bool pairs_only = false;  // the decode node does not compute the prompt
  };
  struct Choice {
    const Candidate* decode = nullptr;
    const Candidate* prefill = nullptr;  // null: the decode node computes the prompt
    PromptTimes prompt;
    PlacementTimes times;
  };
  // `random` outlives this.
  explicit CostPlacement(Random& random) : random_(random) {}

  // What was compared: with each decode node its best choice, with each prefill node the best pair.
  struct Weighed {
    std::vector<Choice> decodes, prefills;
    double tolerance_us = 0;
    // Of any choice, in time or not; and the same without the wait.
    double first_token_us_least = 0, first_token_us_fastest = 0;
  };
  // nullopt: no choice meets the limits, or there is none (then both figures are infinite).
  // `prefills` may be empty: then decode nodes compute the prompt.
  std::optional<Choice> Choose(const PredictedTimes& predicted, absl::Span<const Candidate> decodes,
                               absl::Span<const Candidate> prefills, const Limits& limits,
                               Weighed& weighed);

  // The figures of a choice, in milliseconds, as `tandem why` shows them.
  static void Describe(const Choice& choice, v1::PlacementCandidate& candidate);

 private:
  class Comparison;

  Random& random_;
};

}  // namespace tandem::router
