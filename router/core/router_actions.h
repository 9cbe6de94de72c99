// What a RouterCore wants done: its only output. RouterServer (or the simulator) takes the actions
// after each batch of events and carries them out in order.
// Thread safety: a value.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "router/core/client_event.h"
#include "router/fleet/node_key.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// What a decode node says of the loans of a leg whose sequence has ended here. The router ended it,
// for a stop string or because the client left, so the SequenceDone came before.
struct LentReport {
  std::string request_id;
  LegName leg;
  std::string decode_node;
  v1::LentUse lent;
};

struct RouterActions {
  std::vector<std::pair<NodeKey, v1::NodeCommand>> commands;
  std::vector<std::pair<RequestId, ClientEvent>> client_events;
  std::vector<std::pair<NodeKey, absl::Status>> disconnects;  // streams to end, with the reason
  std::vector<LentReport> lent_reports;  // after the client events; a batch has one for each event

  void swap(RouterActions& other) {
    commands.swap(other.commands);
    client_events.swap(other.client_events);
    disconnects.swap(other.disconnects);
    lent_reports.swap(other.lent_reports);
  }
  bool empty() const {
    return commands.empty() && client_events.empty() && disconnects.empty() && lent_reports.empty();
  }
  // Keeps the memory, unless it is of an unusual burst.
  void clear() {
    constexpr size_t kRoomMax = 4096;
    commands.clear();
    client_events.clear();
    if (client_events.capacity() > kRoomMax) client_events.shrink_to_fit();
    disconnects.clear();
    lent_reports.clear();
  }
};

}  // namespace tandem::router
