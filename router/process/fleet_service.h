// The service nodes join: their streams, without any decision but one: who does not begin with a
// registration, proven where a secret is set, is refused here and reaches nothing else. Hands what
// nodes say to the inbox; sends what the router says. Thread safety: Send and Disconnect
// from any thread; service methods by gRPC.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "router/front_end/inbox.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem::router {

class FleetService final : public v1::Fleet::CallbackService {
 public:
  struct Options {
    // Nodes must prove that they hold it (common/rpc/join_proof.h); empty = anybody may join.
    std::string secret;
    // Streams beyond it end with kResourceExhausted.
    size_t streams_max = 8192;
    // Streams whose registration has not come: beyond it the oldest of them ends, as honest nodes
    // register at once.
    size_t strangers_max = 64;
    absl::Duration register_within = absl::Seconds(10);
  };
  // `inbox` outlives the service.
  FleetService(Inbox& inbox, const Options& options);
  ~FleetService() override;

  grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage>* Join(
      grpc::CallbackServerContext* context) override;

  // Queues for the node's stream; dropped when the stream is gone. Numbers the message.
  void Send(NodeKey node, v1::RouterMessage message);
  // Ends the stream with `status`.
  void Disconnect(NodeKey node, const absl::Status& status);
  // Ends all streams; new ones are refused.
  void DisconnectAll(const absl::Status& status);
  // Ends the streams whose registration is overdue. Call every second or more often.
  void OnTick(absl::Time now);
  // Streams that ended before they were a node's.
  int64_t streams_refused() const { return streams_refused_; }

 private:
  class Stream;
  void Ended(NodeKey node);
  // The first message of a stream: OK makes it a node's.
  absl::Status Admit(NodeKey node, absl::string_view challenge, const v1::NodeMessage& message);
  void NoteRefused(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the oldest stranger's stream.
  void EndStranger(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Inbox& inbox_;
  const Options options_;
  std::atomic<int64_t> streams_refused_{0};
  absl::Mutex mutex_;
  // Bound: streams_max (8,192), then kResourceExhausted.
  absl::flat_hash_map<NodeKey, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  // Those of them that have not registered, and since when. Keys rise, so the first is the oldest.
  // Bound: strangers_max (64), then the oldest goes.
  absl::btree_map<NodeKey, absl::Time> strangers_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_refused_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  // OnTick's, for the log.
  int64_t refusals_logged_ = 0;
  absl::Time next_log_ = absl::InfinitePast();
};

}  // namespace tandem::router
