// Splits a node's messages into pieces that a router accepts. Thread safety: pure functions.
#pragma once

#include <vector>

#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

// The target size. A message is larger only when a single event that cannot be split is. Routers
// accept messages up to rpc::kNodeMessageBytesMax.
inline constexpr size_t kNodeMessageBytes = 1 << 20;

// The content of `message`, in order. A registration is a message of its own, because routers read
// no events beside it. Block hashes that do not fit into it follow as BlocksStored events; lists of
// hashes and of scored tokens are split.
std::vector<v1::NodeMessage> CutNodeMessage(v1::NodeMessage message,
                                            size_t bytes_max = kNodeMessageBytes);

}  // namespace tandem::node
