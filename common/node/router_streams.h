// A node's streams to all of its routers: one FleetClient for each router, and one sink for the
// events of all. What a router reports goes to the other routers, unread. Thread safety: all
// methods from any thread; gRPC threads and Tick call the sink. Owner: NodeRuntime.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/node/node_core.h"
#include "common/rpc/fleet_client.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

// A stream is open and waits for the registration.
struct RouterConnected {
  RouterKey router;
};
struct RouterSpoke {
  RouterKey router;
  v1::RouterMessage message;
};
// The stream ended; once per RouterConnected.
struct RouterGone {
  RouterKey router;
  absl::Status status;
};
using RouterStreamEvent = std::variant<RouterConnected, RouterSpoke, RouterGone>;

class RouterStreams {
 public:
  // Of a router's report; a larger one is not relayed.
  static constexpr size_t kReportBytesMax = 256 << 10;

  // Connects at the first Tick.
  static std::unique_ptr<RouterStreams> Create(const std::vector<std::string>& addresses,
                                               const rpc::FleetAccess& access,
                                               std::function<void(RouterStreamEvent)> sink);
  // Ends all streams, one after the other. The sink is called until then, and not afterwards.
  virtual ~RouterStreams() = default;

  // Opens the streams that are not open, with a backoff. Call it about every 50 ms.
  virtual void Tick(absl::Time now) = 0;
  // Drops the message when the stream is gone. The first message must be the registration; open()
  // and Broadcast know the router once all of it was handed to the stream.
  virtual void Send(RouterKey router, v1::NodeMessage message) = 0;
  // To every router that was sent a registration.
  virtual void Broadcast(const v1::NodeMessage& message) = 0;
  // Routers that were sent a registration and are still connected.
  virtual std::vector<RouterKey> open() const = 0;
  // Routers that answered with Welcome and are still connected.
  virtual int welcomed_count() const = 0;
  // Not OK when no router will serve this node: one refused its registration for good, with
  // kFailedPrecondition, kInvalidArgument, kUnauthenticated or kPermissionDenied, and none has ever
  // welcomed it, or the last word of each router is such a refusal. One of those refusals. Routers
  // of two releases may run at a time, so a node that one of them welcomed does not end because
  // another refuses it.
  virtual absl::Status refused() const = 0;
};

}  // namespace tandem::node
