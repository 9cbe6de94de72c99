// A node's messages to a router, cut to what a router reads at a time.
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

// Larger ones are made only of one event that cannot be cut. Routers take
// rpc::kNodeMessageBytesMax.
inline constexpr size_t kNodeMessageBytes = 1 << 20;

// The same as `message`, in order. Block hashes that the registration has no room for follow it as
// stored ones; lists of hashes and of scored tokens are cut.
std::vector<v1::NodeMessage> CutNodeMessage(v1::NodeMessage message,
                                            size_t bytes_max = kNodeMessageBytes);

}  // namespace tandem::node
