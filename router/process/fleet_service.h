// The gRPC service that nodes join. It carries the nodes' streams: it pushes nodes' messages into
// the inbox and writes the router's messages to the streams. It decides one thing: a stream that
// does not begin with a registration (with a proof, where a secret is set, and with the role of the
// node's certificate, where there is TLS) is refused here, and nothing of it reaches the core.
//
// Thread safety: all public methods from any thread, OnTick from one at a time; gRPC calls Join on
// its own threads.
// Owner: RouterServer.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/peer_identity.h"
#include "router/front_end/inbox.h"
#include "router/process/strangers.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem::router {

class FleetService final : public v1::Fleet::CallbackService {
 public:
  struct Options {
    // Nodes and this router prove to each other that they hold it (common/rpc/join_proof.h).
    // Empty: neither does.
    std::string secret;
    // Nodes show certificates, whose roles the port has checked (FleetTls::NodeRule). A node joins
    // in its certificate's role only.
    bool roles_from_certificates = false;
    // Streams beyond it end with kResourceExhausted.
    size_t streams_max = 8192;
    // Streams that have not registered. Beyond it the oldest of the source that has the most of
    // them is ended (router/process/strangers.h).
    size_t strangers_max = 64;
    absl::Duration register_within = absl::Seconds(10);
  };
  // `inbox` outlives the service.
  FleetService(Inbox& inbox, const Options& options);
  ~FleetService() override;

  grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage>* Join(
      grpc::CallbackServerContext* context) override;

  // Numbers the message and queues it for the node's stream. Dropped when the stream has ended.
  void Send(NodeKey node, v1::RouterMessage message);
  // Ends the stream with `status`: no message of it goes on to the core. While its node reads
  // nothing, a write that is under way keeps the stream open, until the connection ends.
  void Disconnect(NodeKey node, const absl::Status& status);
  // Ends all streams; new ones are refused.
  void DisconnectAll(const absl::Status& status);
  // Ends the streams whose registration is overdue. Call every second or more often.
  void OnTick(absl::Time now);
  // Streams that were ended before they registered.
  int64_t streams_refused() const { return streams_refused_; }

 private:
  class Stream;
  void Ended(NodeKey node);
  // What a stream's first message must prove.
  struct Expected {
    std::string challenge;
    std::optional<rpc::PeerRole> role;  // none: any
  };
  // Checks the first message of a stream. OK: the stream belongs to a node.
  absl::Status Admit(NodeKey node, const Expected& expected, const v1::NodeMessage& message);
  void NoteRefused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends a stream that has not registered.
  void EndStranger(NodeKey node, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Inbox& inbox_;
  const Options options_;
  std::atomic<int64_t> streams_refused_{0};
  absl::Mutex mutex_;
  // Bound: streams_max (8,192), then kResourceExhausted.
  absl::flat_hash_map<NodeKey, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  // Streams that have not registered.
  Strangers strangers_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_refused_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  // Only OnTick uses these, to log refusals.
  int64_t refusals_logged_ = 0;
  absl::Time next_log_ = absl::InfinitePast();
};

}  // namespace tandem::router
