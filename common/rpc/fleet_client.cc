#include "common/rpc/fleet_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/outbox.h"
#include "common/rpc/reconnect_pace.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem::rpc {
namespace {

// A router that hangs is noticed by pings, within less than a lease's default time; one that is
// gone by its connection.
constexpr int kPingEveryMs = 2000;
constexpr int kPingTimeoutMs = 3000;
// A router that does not read for this many messages is dropped and must rejoin.
constexpr size_t kOutboxMax = 65536;
// A router that cannot be reached is tried many times a second.
constexpr absl::Duration kUnreachableLoggedEvery = absl::Minutes(1);
// What a router has to read the last messages of a client that goes; in order, they are few.
constexpr absl::Duration kGoodbyeMax = absl::Milliseconds(500);

class FleetClientImpl;

// One connection, owned by the client until gRPC's OnDone.
class Stream final : public grpc::ClientBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  // From here on writes may be queued; they travel after Start.
  Stream(FleetClientImpl& owner, uint64_t connection, v1::Fleet::Stub& stub)
      : owner_(owner), connection_(connection), outbox_(kOutboxMax) {
    stub.async()->Join(&context_, this);
    AddHold();  // writes start outside of reactions
  }

  void Start() {
    StartRead(&incoming_);
    StartCall();
  }
  void Send(v1::NodeMessage message, const std::string& secret) {
    if (message.has_registration()) ProveJoin(secret, challenge_, *message.mutable_registration());
    message.set_sequence_number(++sequence_number_);
    if (outbox_.Add(std::move(message))) {
      StartWrite(outbox_.current());
    } else if (outbox_.overflowed()) {
      context_.TryCancel();
    }
  }
  void Cancel() { context_.TryCancel(); }
  // What was sent is written, then the router is told that nothing follows: it ends the stream.
  void Finish() {
    if (outbox_.Finish()) TellDone();
  }
  // No write starts after this.
  void CloseOutbox() { outbox_.Close(); }
  uint64_t connection() const { return connection_; }
  // Whether the listener knows of this connection.
  bool opened() const { return opened_; }

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override {
    if (!ok) {
      outbox_.Close();
    } else if (outbox_.Written()) {
      StartWrite(outbox_.current());
    } else if (outbox_.drained()) {
      TellDone();
    }
  }
  void OnDone(const grpc::Status& status) override;

 private:
  void TellDone() {
    if (!told_done_.exchange(true)) StartWritesDone();
  }

  FleetClientImpl& owner_;
  const uint64_t connection_;
  grpc::ClientContext context_;
  v1::RouterMessage incoming_;
  Outbox<v1::NodeMessage> outbox_;
  std::string challenge_;  // set before the owner's mutex is taken to announce this
  std::atomic<bool> opened_{false};
  std::atomic<bool> told_done_{false};
  uint64_t sequence_number_ = 0;  // guarded by the owner's mutex
};

class FleetClientImpl final : public FleetClient {
 public:
  FleetClientImpl(const std::string& address, Listener& listener, const std::string& secret)
      : address_(address), secret_(secret), listener_(listener) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    // Heartbeats of this stream must not wait behind another stream's channel.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // Tick decides when to try again; the channel's own waits stay below Tick's.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    // What one attempt may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound: a router may be quiet
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::Fleet::NewStub(channel_);
  }

  ~FleetClientImpl() override {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr && stream_->opened()) {
      // A cancelled stream loses what is on its way, such as that this node drains.
      stream_->Finish();
      mutex_.AwaitWithTimeout(absl::Condition(this, &FleetClientImpl::NoStream), kGoodbyeMax);
    }
    if (stream_ != nullptr) stream_->Cancel();
    mutex_.Await(absl::Condition(this, &FleetClientImpl::NoStream));
  }

  const std::string& router_address() const override { return address_; }

  void Tick(absl::Time now) override {
    Stream* starting = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      now_ = now;
      if (stopping_ || stream_ != nullptr || !pace_.Due(now)) return;
      pace_.Tried(now);
      stream_ = std::make_unique<Stream>(*this, ++connections_, *stub_);
      starting = stream_.get();
    }
    starting->Start();
  }

  void Send(uint64_t connection, v1::NodeMessage message) override {
    absl::MutexLock lock(&mutex_);
    if (stream_ != nullptr && stream_->connection() == connection)
      stream_->Send(std::move(message), secret_);
  }

  void Disconnect(uint64_t connection) override {
    absl::MutexLock lock(&mutex_);
    if (stream_ != nullptr && stream_->connection() == connection) stream_->Cancel();
  }

  // Writes start under the same lock, so none is begun on a stream that may be gone.
  void CloseOutbox(Stream& stream) {
    absl::MutexLock lock(&mutex_);
    stream.CloseOutbox();
  }

  void Opened(uint64_t connection) { listener_.OnConnected(*this, connection); }

  void Received(uint64_t connection, v1::RouterMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      pace_.Heard();
    }
    listener_.OnMessage(*this, connection, std::move(message));
  }

  void Ended(const Stream& stream, const absl::Status& status) {
    const bool opened = stream.opened();
    if (opened) listener_.OnDisconnected(*this, stream.connection(), status);
    // Before the owner may go: it waits until there is no stream.
    if (!opened && UnreachableIsNews()) {
      Log(LogLevel::kWarning, "cannot reach router, trying again",
          {{"address", address_}, {"why", status.message()}});
    }
    absl::MutexLock lock(&mutex_);
    stream_.reset();
    if (opened) next_unreachable_log_ = absl::InfinitePast();
  }

 private:
  bool UnreachableIsNews() {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || now_ < next_unreachable_log_) return false;
    next_unreachable_log_ = now_ + kUnreachableLoggedEvery;
    return true;
  }
  bool NoStream() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; }

  const std::string address_, secret_;
  Listener& listener_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Fleet::Stub> stub_;
  absl::Mutex mutex_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  uint64_t connections_ ABSL_GUARDED_BY(mutex_) = 0;
  ReconnectPace pace_ ABSL_GUARDED_BY(mutex_);
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // as the last Tick said
  absl::Time next_unreachable_log_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// The registration waits for the challenge, so the listener hears of the stream only now.
void Stream::OnReadInitialMetadataDone(bool ok) {
  if (!ok) return;
  const auto& metadata = context_.GetServerInitialMetadata();
  if (const auto found = metadata.find(kChallengeKey); found != metadata.end()) {
    challenge_.assign(found->second.data(), found->second.size());
  }
  opened_ = true;
  owner_.Opened(connection_);
}

void Stream::OnReadDone(bool ok) {
  if (!ok) {
    owner_.CloseOutbox(*this);
    RemoveHold();
    return;
  }
  owner_.Received(connection_, std::move(incoming_));
  incoming_.Clear();
  StartRead(&incoming_);
}

void Stream::OnDone(const grpc::Status& status) {
  owner_.Ended(*this, status.ok() ? absl::UnavailableError("the router closed the stream")
                                  : FromGrpc(status));
  // This object is gone now.
}

}  // namespace

std::unique_ptr<FleetClient> FleetClient::Create(const std::string& router_address,
                                                 Listener& listener, const std::string& secret) {
  return std::make_unique<FleetClientImpl>(router_address, listener, secret);
}

}  // namespace tandem::rpc
