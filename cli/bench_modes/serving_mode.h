// The ways in which the same programs can serve, on equally many nodes.
// Thread safety: plain values and pure functions.
#pragma once

#include <array>

#include "cli/cluster/cluster_plan.h"

namespace tandem::cli {

enum class ServingMode {
  // A node takes a batch of requests and serves all of them to their ends before the next.
  kBatched,
  // A request joins at any step; pieces of its prompt share steps with other answers' tokens.
  kInterleaved,
  // Prefill nodes compute prompts, decode nodes generate.
  kDisaggregated,
};
inline constexpr std::array kServingModes = {ServingMode::kBatched, ServingMode::kInterleaved,
                                             ServingMode::kDisaggregated};

const char* NameOf(ServingMode mode);

// `up` as a disaggregated cluster; the others have as many decode nodes as it has nodes. Without
// HTTP, and with gRPC on a free port.
UpConfig ConfigureFor(ServingMode mode, const UpConfig& up);

}  // namespace tandem::cli
