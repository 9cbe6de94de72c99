// What a RouterCore wants done: its only output. RouterServer (or the simulator) takes the actions
// after each batch of events and carries them out in order.
// Thread safety: a value.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "router/core/client_event.h"
#include "router/fleet/node_key.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

struct RouterActions {
  std::vector<std::pair<NodeKey, v1::NodeCommand>> commands;
  std::vector<std::pair<RequestId, ClientEvent>> client_events;
  std::vector<std::pair<NodeKey, absl::Status>> disconnects;  // streams to end, with the reason

  void swap(RouterActions& other) {
    commands.swap(other.commands);
    client_events.swap(other.client_events);
    disconnects.swap(other.disconnects);
  }
  bool empty() const { return commands.empty() && client_events.empty() && disconnects.empty(); }
  // Keeps the memory, unless it is of an unusual burst.
  void clear() {
    constexpr size_t kRoomMax = 4096;
    commands.clear();
    client_events.clear();
    if (client_events.capacity() > kRoomMax) client_events.shrink_to_fit();
    disconnects.clear();
  }
};

}  // namespace tandem::router
