// What about a node deserves attention: why requests wait, or will soon.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// A node is hot from this share of its blocks in use, in percent. Cached blocks do not count: a
// full cache is a good one.
inline constexpr int kHotBlocksPercent = 90;
// And when the router has not heard from it for so long. Nodes report at least once a second.
inline constexpr double kSilentMs = 3000;

// The gravest reason, in at most 12 columns: "lost", "silent 5s", "draining", "9 waiting",
// "KV 97%". Empty for a node that is well.
std::string HeatOf(const v1::NodeStatus& node);

}  // namespace tandem::cli
