// Names one sequence of one request inside the core, and on the wire as a leg's `number`. Serials
// rise with admission, so a walk in their order is the same in every run of the simulator.
// Thread safety: a value. 0 names no sequence.
#pragma once

#include <cstdint>

namespace tandem::router {

using Serial = uint64_t;

}  // namespace tandem::router
