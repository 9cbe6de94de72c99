// A node's stream to one router. It connects, reconnects with backoff, and queues the node's
// messages, because gRPC allows one write at a time. A node has one FleetClient for each router.
// Thread safety: any thread may call any method. gRPC's threads call the Listener; the calls of one
// connection come one at a time, in order.
// Owner: the node's runtime.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

// By what a node and its routers know each other.
struct FleetAccess {
  // The fleet's: node and router prove it to each other (common/rpc/join_proof.h). Empty: neither.
  std::string secret;
  // As common/rpc/fleet_tls.h makes them. Null: no TLS.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
};

class FleetClient {
 public:
  // Hears of each connection that the router accepted. Connections are numbered 1, 2, ... With a
  // secret it hears no message of a router that has not proven it.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The stream is open. The listener must Send the registration as its first message.
    virtual void OnConnected(FleetClient& client, uint64_t connection) = 0;
    virtual void OnMessage(FleetClient& client, uint64_t connection, v1::RouterMessage message) = 0;
    // The stream ended. Called exactly once after each OnConnected. A later Tick reconnects.
    virtual void OnDisconnected(FleetClient& client, uint64_t connection,
                                const absl::Status& status) = 0;
  };

  // `router_address`: host:port. `listener` outlives the client.
  static std::unique_ptr<FleetClient> Create(const std::string& router_address, Listener& listener,
                                             const FleetAccess& access = {});
  // Waits at most half a second for the router to take the queued messages, ends the stream, and
  // waits for the last callback.
  virtual ~FleetClient() = default;

  virtual const std::string& router_address() const = 0;
  // Opens a stream if none is open and the backoff has passed. The owner calls it about every
  // 50 ms.
  virtual void Tick(absl::Time now) = 0;
  // Numbers `message` and queues it for `connection`. Drops it when that connection has ended.
  virtual void Send(uint64_t connection, v1::NodeMessage message) = 0;
  // Ends `connection`. No effect when it is no longer the current one.
  virtual void Disconnect(uint64_t connection) = 0;
};

}  // namespace tandem::rpc
