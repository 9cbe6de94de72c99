// A node's stream to one router: connects, reconnects with backoff, writes one message at a time.
// Thread safety: all methods from any thread. Listener calls come from gRPC threads, in order for
// one connection.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::rpc {

class FleetClient {
 public:
  // One call per connection attempt that the router answered, numbered 1, 2, ...
  class Listener {
   public:
    virtual ~Listener() = default;
    // The stream is open; the listener must Send the registration next.
    virtual void OnConnected(FleetClient& client, uint64_t connection) = 0;
    virtual void OnMessage(FleetClient& client, uint64_t connection, v1::RouterMessage message) = 0;
    // The stream ended; exactly once per OnConnected. A reconnect follows by Tick.
    virtual void OnDisconnected(FleetClient& client, uint64_t connection,
                                const absl::Status& status) = 0;
  };

  // `listener` outlives the client.
  // Registrations are proven with `secret` (common/rpc/join_proof.h).
  static std::unique_ptr<FleetClient> Create(const std::string& router_address, Listener& listener,
                                             const std::string& secret = "");
  // Ends the stream, once what was sent is written if the router takes it within half a second, and
  // waits for its last callback.
  virtual ~FleetClient() = default;

  virtual const std::string& router_address() const = 0;
  // Opens a stream if none is open and the backoff has passed. Call every 50 ms or so.
  virtual void Tick(absl::Time now) = 0;
  // Queues for `connection`; dropped when that connection is gone. Numbers the message.
  virtual void Send(uint64_t connection, v1::NodeMessage message) = 0;
  // Ends `connection` if it is still the current one.
  virtual void Disconnect(uint64_t connection) = 0;
};

}  // namespace tandem::rpc
