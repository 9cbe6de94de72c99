// The streams of the fleet's port that have not registered yet, and which of them makes room for
// another. A node registers between two of its steps, so one that is busy is a stranger for some
// time. A process that holds no secret could open streams faster than that, so the source with the
// most strangers gives one up, and a flood from one address costs only streams of that address.
// Thread safety: none; FleetService locks. Owner: FleetService.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "router/fleet/node_key.h"

namespace tandem::router {

class Strangers {
 public:
  // `source`: of SourceOfGrpcPeer. Keys rise from call to call.
  void Add(NodeKey node, std::string source, absl::Time now);
  // False: it was none.
  bool Erase(NodeKey node) { return opened_.erase(node) > 0; }
  size_t size() const { return opened_.size(); }
  // The oldest of the source that has the most; of several such sources, the oldest of all theirs.
  // REQUIRES: there is one.
  NodeKey ToGiveUp() const;
  // The oldest, if it opened at `time` or before.
  std::optional<NodeKey> OpenedBy(absl::Time time) const;

 private:
  struct Opened {
    std::string source;
    absl::Time at;
  };
  // By key, so the first is the oldest.
  // Bound: FleetService::Options::strangers_max (64), then ToGiveUp() goes.
  absl::btree_map<NodeKey, Opened> opened_;
};

}  // namespace tandem::router
