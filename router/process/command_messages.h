// Puts commands for nodes into the messages of the nodes' streams. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "router/fleet/node_key.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// A message takes no further command once its commands have this many bytes, so it is larger by one
// command at most. A command repeats what a client's request holds (16 MiB at most) and its prompt,
// and nodes accept messages up to rpc::kRouterMessageBytesMax.
inline constexpr size_t kCommandMessageBytes = 1 << 20;

// Messages with all `commands`, which are moved from. Those to one node are in their order.
std::vector<std::pair<NodeKey, v1::RouterMessage>> CommandMessages(
    std::vector<std::pair<NodeKey, v1::NodeCommand>>& commands);

}  // namespace tandem::router
