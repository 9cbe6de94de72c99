#include "common/node/router_streams.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/node/node_message.h"
#include "common/rpc/shutdown_text.h"
#include "common/telemetry/log.h"

namespace tandem::node {
namespace {

class RouterStreamsImpl final : public RouterStreams, public rpc::FleetClient::Listener {
 public:
  RouterStreamsImpl(const std::vector<std::string>& addresses, const rpc::FleetAccess& access,
                    std::function<void(RouterStreamEvent)> sink)
      : sink_(std::move(sink)) {
    for (const std::string& address : addresses) {
      clients_.push_back(rpc::FleetClient::Create(address, *this, access));
    }
  }
  ~RouterStreamsImpl() override {
    {
      // One client ends while others still read, and relay what they read.
      absl::MutexLock lock(&mutex_);
      leaving_ = true;
      mutex_.Await(absl::Condition(this, &RouterStreamsImpl::NobodySends));
    }
    clients_.clear();
  }

  void Tick(absl::Time now) override {
    for (auto& client : clients_) client->Tick(now);
  }

  void Send(RouterKey router, v1::NodeMessage message) override {
    rpc::FleetClient* client = nullptr;
    uint64_t connection = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = streams_.find(router);
      if (found == streams_.end() || leaving_) return;
      client = found->second.client;
      connection = found->second.connection;
      ++sending_;
    }
    const bool registers = message.has_registration();
    for (v1::NodeMessage& part : CutNodeMessage(std::move(message)))
      client->Send(connection, std::move(part));
    // Not earlier: a heartbeat of another thread would overtake the registration, and routers
    // refuse a stream that begins with anything else.
    OnSent(router, registers);
  }

  void Broadcast(const v1::NodeMessage& message) override {
    for (const RouterKey router : open()) Send(router, message);
  }

  std::vector<RouterKey> open() const override {
    absl::MutexLock lock(&mutex_);
    std::vector<RouterKey> routers;
    for (const auto& [router, stream] : streams_) {
      if (stream.registered) routers.push_back(router);
    }
    return routers;
  }

  int welcomed_count() const override {
    absl::MutexLock lock(&mutex_);
    int count = 0;
    for (const auto& [router, stream] : streams_) count += stream.welcomed ? 1 : 0;
    return count;
  }

  absl::Status refused() const override {
    absl::MutexLock lock(&mutex_);
    const bool all = refusals_.size() == clients_.size();
    return refusals_.empty() || (ever_welcomed_ && !all) ? absl::OkStatus()
                                                         : refusals_.begin()->second;
  }

  void OnConnected(rpc::FleetClient& client, uint64_t connection) override {
    RouterKey router;
    {
      absl::MutexLock lock(&mutex_);
      router = RouterKey(next_key_++);
      streams_[router] = Stream{&client, connection};
    }
    sink_(RouterConnected{router});
  }

  void OnMessage(rpc::FleetClient& client, uint64_t connection,
                 v1::RouterMessage message) override {
    RouterKey router;
    {
      absl::MutexLock lock(&mutex_);
      Stream* stream = Find(client, connection, &router);
      if (stream == nullptr) return;
      if (message.has_welcome()) {
        stream->welcomed = true;
        ever_welcomed_ = true;
        refusals_.erase(&client);
        Log(LogLevel::kInfo, "joined router",
            {{"router_id", message.welcome().router_id()}, {"address", client.router_address()}});
      }
    }
    if (message.has_report()) RelayReport(router, message);
    sink_(RouterSpoke{router, std::move(message)});
  }

  void OnDisconnected(rpc::FleetClient& client, uint64_t connection,
                      const absl::Status& status) override {
    RouterKey router;
    {
      absl::MutexLock lock(&mutex_);
      const Stream* stream = Find(client, connection, &router);
      if (stream == nullptr) return;
      const bool was_welcomed = stream->welcomed;
      // A stream that ends before the registration is handed over says nothing about this node.
      const bool for_good = stream->registered && IsForGood(status);
      streams_.erase(router);
      if (for_good && refusals_[&client] != status) {
        refusals_[&client] = status;
        Log(LogLevel::kError, "router refused this node",
            {{"address", client.router_address()}, {"why", status.message()}});
      } else if (was_welcomed && !leaving_) {
        const bool ordered = status.message() == rpc::kRouterShutsDown;
        Log(ordered ? LogLevel::kInfo : LogLevel::kWarning, "lost the stream to a router",
            {{"address", client.router_address()}, {"why", status.message()}});
      }
    }
    sink_(RouterGone{router, status});
  }

 private:
  struct Stream {
    rpc::FleetClient* client = nullptr;
    uint64_t connection = 0;
    bool registered = false;  // the registration was handed over
    bool welcomed = false;
  };

  static bool IsForGood(const absl::Status& status) {
    return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
           absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
  }

  void OnSent(RouterKey router, bool registers) {
    absl::MutexLock lock(&mutex_);
    --sending_;
    if (const auto found = streams_.find(router); registers && found != streams_.end())
      found->second.registered = true;
  }
  bool NobodySends() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return sending_ == 0; }

  void RelayReport(RouterKey from, v1::RouterMessage& message) {
    v1::NodeMessage relayed;
    relayed.add_reports()->Swap(message.mutable_report());
    message.clear_report();
    if (relayed.ByteSizeLong() > kReportBytesMax) return;
    for (const RouterKey router : open())
      if (router != from) Send(router, relayed);
  }

  Stream* Find(const rpc::FleetClient& client, uint64_t connection, RouterKey* router)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [key, stream] : streams_) {
      if (stream.client == &client && stream.connection == connection) {
        *router = key;
        return &stream;
      }
    }
    return nullptr;
  }

  const std::function<void(RouterStreamEvent)> sink_;
  mutable absl::Mutex mutex_;
  // Bound: one for each address of --routers.
  absl::btree_map<RouterKey, Stream> streams_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  // The routers whose last word was a refusal for good.
  // Bound: one for each address of --routers.
  absl::flat_hash_map<const rpc::FleetClient*, absl::Status> refusals_ ABSL_GUARDED_BY(mutex_);
  bool ever_welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;  // this node ends its streams itself
  int sending_ ABSL_GUARDED_BY(mutex_) = 0;       // calls of Send that use a client
  // Bound: the addresses of --routers, fixed.
  std::vector<std::unique_ptr<rpc::FleetClient>> clients_;  // fixed after construction
};

}  // namespace

std::unique_ptr<RouterStreams> RouterStreams::Create(const std::vector<std::string>& addresses,
                                                     const rpc::FleetAccess& access,
                                                     std::function<void(RouterStreamEvent)> sink) {
  return std::make_unique<RouterStreamsImpl>(addresses, access, std::move(sink));
}

}  // namespace tandem::node
