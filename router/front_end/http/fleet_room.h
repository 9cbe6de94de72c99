// What requests are fitted to that ask for as much as there is. Thread safety: plain values.
#pragma once

#include <cstdint>

namespace tandem::router {

// What the fleet holds of one sequence, in tokens.
struct FleetRoom {
  int64_t context = 0;  // of prompt and answer; at most the model's context
  int64_t prompt = 0;   // of the prompt alone: less where nodes lend each other memory
};

}  // namespace tandem::router
