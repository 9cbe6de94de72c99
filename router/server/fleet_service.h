// The service nodes join: their streams, without any decision. Hands what arrives to the inbox;
// sends what the router thread says. Thread safety: Send and Disconnect from any thread; service
// methods by gRPC.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "router/server/inbox.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem::router {

class FleetService final : public v1::Fleet::CallbackService {
 public:
  // `inbox` outlives the service. Streams beyond `streams_max` end with kResourceExhausted: peers
  // need not register to hold one.
  explicit FleetService(Inbox& inbox, size_t streams_max = 8192);
  ~FleetService() override;

  grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage>* Join(
      grpc::CallbackServerContext* context) override;

  // Queues for the node's stream; dropped when the stream is gone. Numbers the message.
  void Send(NodeKey node, v1::RouterMessage message);
  // Ends the stream with `status`.
  void Disconnect(NodeKey node, const absl::Status& status);
  // Ends all streams; new ones are refused.
  void DisconnectAll(const absl::Status& status);

 private:
  class Stream;
  void Ended(NodeKey node);

  Inbox& inbox_;
  const size_t streams_max_;
  absl::Mutex mutex_;
  // Bound: streams_max (8,192), then kResourceExhausted.
  absl::flat_hash_map<NodeKey, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
