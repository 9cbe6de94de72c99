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
};

}  // namespace tandem::router
