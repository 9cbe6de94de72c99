#include "router/server/fleet_service.h"

#include <atomic>
#include <utility>

#include "common/rpc/outbox.h"
#include "common/rpc/status.h"

namespace tandem::router {
namespace {

// A node that does not read for this many messages is dropped and must rejoin.
constexpr size_t kOutboxMax = 65536;

}  // namespace

class FleetService::Stream final
    : public grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  Stream(FleetService& owner, NodeKey node) : owner_(owner), node_(node), outbox_(kOutboxMax) {}

  void Start() { Read(); }

  void Send(v1::RouterMessage message) {
    message.set_sequence_number(++sequence_number_);
    if (outbox_.Add(std::move(message))) {
      StartWrite(outbox_.current());
    } else if (outbox_.overflowed()) {
      End(absl::ResourceExhaustedError("the node does not read its commands"));
    }
  }

  // The first caller decides the status; gRPC's Finish follows once no write is under way.
  void End(const absl::Status& status) {
    if (ending_.exchange(true)) return;
    end_status_ = status;
    if (outbox_.Close()) FinishOnce();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    if (incoming_->has_registration()) {
      owner_.inbox_.Push(NodeRegistered{node_, incoming_->registration()});
    } else {
      owner_.inbox_.Push(NodeSpoke{node_, std::move(arena_), incoming_});
    }
    Read();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) End(absl::UnavailableError("the stream broke"));
    if (outbox_.Written()) {
      StartWrite(outbox_.current());
    } else if (outbox_.closed()) {
      FinishOnce();
    }
  }
  void OnCancel() override { End(absl::CancelledError("the node ended the stream")); }
  void OnDone() override {
    Inbox& inbox = owner_.inbox_;
    NodeGone gone{node_, end_status_.ok() ? absl::UnavailableError("the node left") : end_status_};
    owner_.Ended(node_);
    // This object is gone now, and its place is free.
    inbox.Push(std::move(gone));
  }

 private:
  void Read() {
    arena_ = std::make_unique<google::protobuf::Arena>();
    incoming_ = google::protobuf::Arena::CreateMessage<v1::NodeMessage>(arena_.get());
    StartRead(incoming_);
  }

  void FinishOnce() {
    if (!finished_.exchange(true)) Finish(rpc::ToGrpc(end_status_));
  }

  FleetService& owner_;
  const NodeKey node_;
  std::unique_ptr<google::protobuf::Arena> arena_;  // of the message being read
  v1::NodeMessage* incoming_ = nullptr;
  rpc::Outbox<v1::RouterMessage> outbox_;
  uint64_t sequence_number_ = 0;  // guarded by the owner's mutex
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  absl::Status end_status_;  // written once, before the outbox closes
};

namespace {

// Refuses a stream at once.
class RefusedStream final : public grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(rpc::ToGrpc(status)); }
  void OnDone() override { self_.reset(); }
  void Keep(std::unique_ptr<RefusedStream> self) { self_ = std::move(self); }

 private:
  std::unique_ptr<RefusedStream> self_;  // gRPC owns the reactor until OnDone
};

}  // namespace

FleetService::FleetService(Inbox& inbox, size_t streams_max)
    : inbox_(inbox), streams_max_(streams_max) {}
FleetService::~FleetService() = default;

grpc::ServerBidiReactor<v1::NodeMessage, v1::RouterMessage>* FleetService::Join(
    grpc::CallbackServerContext*) {
  absl::MutexLock lock(&mutex_);
  absl::Status status = closed_;
  if (status.ok() && streams_.size() >= streams_max_) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(streams_.size(), " nodes' streams are open, the limit is ", streams_max_));
  }
  if (!status.ok()) {
    auto refused = std::make_unique<RefusedStream>(status);
    RefusedStream* reactor = refused.get();
    reactor->Keep(std::move(refused));
    return reactor;
  }
  const NodeKey node(next_key_++);
  auto stream = std::make_unique<Stream>(*this, node);
  Stream* reactor = stream.get();
  streams_[node] = std::move(stream);
  reactor->Start();
  return reactor;
}

void FleetService::Send(NodeKey node, v1::RouterMessage message) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = streams_.find(node); found != streams_.end()) {
    found->second->Send(std::move(message));
  }
}

void FleetService::Disconnect(NodeKey node, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = streams_.find(node); found != streams_.end()) {
    found->second->End(status);
  }
}

void FleetService::DisconnectAll(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  closed_ = status;
  for (auto& [node, stream] : streams_) stream->End(status);
}

void FleetService::Ended(NodeKey node) {
  std::unique_ptr<Stream> ended;  // destroyed after the lock is released
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(node);
  if (found == streams_.end()) return;
  ended = std::move(found->second);
  streams_.erase(found);
}

}  // namespace tandem::router
