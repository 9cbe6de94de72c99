#include "common/rpc/fleet_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/steady_cond_var.h"
#include "common/rpc/join_proof.h"
#include "common/rpc/outbox.h"
#include "common/rpc/reconnect_pace.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "tandem/v1/fleet.grpc.pb.h"

namespace tandem::rpc {
namespace {

// Pings detect a router that hangs, within seconds. A router that exits closes the connection.
constexpr int kPingEveryMs = 2000;
constexpr int kPingTimeoutMs = 3000;
// gRPC asks for a router's name once in 30 s by default. A router that restarts may have another
// address behind its name, and its requests wait for the nodes.
constexpr int kResolveEveryMs = 500;
// The client ends the stream of a router that leaves this many messages unread.
constexpr size_t kOutboxMax = 65536;
// The client tries an unreachable router every two seconds or more often, but logs it only this
// often.
constexpr absl::Duration kUnreachableLoggedEvery = absl::Minutes(1);
// A router that was reached and is gone is no news yet: it may restart, or the whole fleet ends.
constexpr absl::Duration kUnreachableNewsAfter = absl::Seconds(2);
// How long a client that shuts down waits for the router to read its last messages, which are few.
constexpr absl::Duration kGoodbyeMax = absl::Milliseconds(500);

class FleetClientImpl;

// One connection, owned by the client until gRPC's OnDone.
class Stream final : public grpc::ClientBidiReactor<v1::NodeMessage, v1::RouterMessage> {
 public:
  // Send may queue messages from now on; gRPC writes them after Start.
  Stream(FleetClientImpl& owner, uint64_t connection, v1::Fleet::Stub& stub)
      : owner_(owner), connection_(connection), outbox_(kOutboxMax) {
    stub.async()->Join(&context_, this);
    AddHold();  // for writes that start outside of callbacks
  }

  void Start() {
    StartRead(&incoming_);
    StartCall();
  }
  void Send(v1::NodeMessage message, const std::string& secret) {
    if (message.has_registration()) {
      v1::Registration& registration = *message.mutable_registration();
      registration.set_nonce(NewChallenge());
      ProveJoin(secret, challenge_, registration);
      join_proof_ = registration.proof();
    }
    message.set_sequence_number(++sequence_number_);
    if (outbox_.Add(std::move(message))) {
      StartWrite(outbox_.current());
    } else if (outbox_.overflowed()) {
      context_.TryCancel();
    }
  }
  void Cancel() { context_.TryCancel(); }
  // Writes the queued messages, then tells the router that nothing follows. The router then ends
  // the stream.
  void Finish() {
    if (outbox_.Finish()) TellDone();
  }
  // Drops the queued messages; no write starts after this.
  void CloseOutbox() { outbox_.Close(); }
  uint64_t connection() const { return connection_; }
  // What the router's Welcome must answer. Under the owner's mutex.
  const std::string& join_proof() const { return join_proof_; }
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
  std::string challenge_;   // set before opened_, and not changed after
  std::string join_proof_;  // guarded by the owner's mutex
  bool trusted_ = false;    // by reads, as impostor_
  absl::Status impostor_;   // not OK: why nothing of this router is believed
  std::atomic<bool> opened_{false};
  std::atomic<bool> told_done_{false};
  uint64_t sequence_number_ = 0;  // guarded by the owner's mutex
};

class FleetClientImpl final : public FleetClient {
 public:
  FleetClientImpl(const std::string& address, Listener& listener, const FleetAccess& access)
      : address_(address),
        secret_(access.secret),
        credentials_(access.credentials != nullptr ? access.credentials
                                                   : grpc::InsecureChannelCredentials()),
        listener_(listener) {}

  ~FleetClientImpl() override {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (stream_ != nullptr && stream_->opened()) {
      // Cancelling a stream loses messages in flight, such as the one that this node drains.
      stream_->Finish();
      stream_ended_.WaitFor(&mutex_, kGoodbyeMax,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return NoStream(); });
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
      pace_.OnTry(now);
      // The resolver of a channel waits before it asks for a name again, up to two minutes if the
      // name was not found. That of a new channel asks at once.
      if (!reached_) stub_ = v1::Fleet::NewStub(NewChannel());
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

  // Writes start under the same lock, so none starts on a stream that has ended.
  void CloseOutbox(Stream& stream) {
    absl::MutexLock lock(&mutex_);
    stream.CloseOutbox();
  }

  // Whether the router's first message proves that it holds the fleet's secret, if there is one.
  absl::Status CheckRouter(const Stream& stream, const v1::RouterMessage& message) {
    if (secret_.empty()) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    return CheckWelcomeProof(secret_, stream.join_proof(), message.welcome());
  }

  void Opened(uint64_t connection) { listener_.OnConnected(*this, connection); }

  void Received(uint64_t connection, v1::RouterMessage message) {
    {
      absl::MutexLock lock(&mutex_);
      pace_.OnMessage();
    }
    listener_.OnMessage(*this, connection, std::move(message));
  }

  void Ended(const Stream& stream, const absl::Status& status) {
    const bool opened = stream.opened();
    if (opened) listener_.OnDisconnected(*this, stream.connection(), status);
    // The destructor waits until stream_ is null, so *this still exists here.
    if (!opened && UnreachableIsNews()) {
      Log(LogLevel::kWarning, "cannot reach router, trying again",
          {{"address", address_}, {"why", status.message()}});
    }
    absl::MutexLock lock(&mutex_);
    stream_.reset();
    stream_ended_.SignalAll();
    if (opened) next_unreachable_log_ = now_ + kUnreachableNewsAfter;
    reached_ = opened;
  }

  // A node does not end for that: it has other routers, and the right one may come to the address.
  void EndedAsImpostor(const Stream& stream, const absl::Status& why) {
    listener_.OnDisconnected(*this, stream.connection(), absl::UnavailableError(why.message()));
    if (UnreachableIsNews()) {
      Log(LogLevel::kError, "a router is no router of this fleet, trying again",
          {{"address", address_}, {"why", why.message()}});
    }
    absl::MutexLock lock(&mutex_);
    stream_.reset();
    reached_ = false;
    stream_ended_.SignalAll();
  }

 private:
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kRouterMessageBytesMax);
    // Heartbeats of this stream must not wait behind another stream's channel.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // Tick decides when to reconnect; the channel's own backoff stays below that.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    // The time limit of one attempt.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, kResolveEveryMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound: a router may be quiet
    return grpc::CreateCustomChannel(address_, credentials_, arguments);
  }
  bool UnreachableIsNews() {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || now_ < next_unreachable_log_) return false;
    next_unreachable_log_ = now_ + kUnreachableLoggedEvery;
    return true;
  }
  bool NoStream() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stream_ == nullptr; }

  const std::string address_, secret_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  Listener& listener_;
  absl::Mutex mutex_;
  std::unique_ptr<v1::Fleet::Stub> stub_ ABSL_GUARDED_BY(mutex_);
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;  // the router, by the last attempt
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  SteadyCondVar stream_ended_;
  uint64_t connections_ ABSL_GUARDED_BY(mutex_) = 0;
  ReconnectPace pace_ ABSL_GUARDED_BY(mutex_);
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // as the last Tick said
  absl::Time next_unreachable_log_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// The registration needs the challenge, so the listener learns of the stream only here.
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
  if (!trusted_ && impostor_.ok()) {
    impostor_ = owner_.CheckRouter(*this, incoming_);
    trusted_ = impostor_.ok();
    if (!trusted_) Cancel();
  }
  if (trusted_) owner_.Received(connection_, std::move(incoming_));
  incoming_.Clear();
  StartRead(&incoming_);
}

void Stream::OnDone(const grpc::Status& status) {
  if (!impostor_.ok()) {
    owner_.EndedAsImpostor(*this, impostor_);
  } else {
    owner_.Ended(*this, status.ok() ? absl::UnavailableError("the router closed the stream")
                                    : FromGrpc(status));
  }
  // The owner destroyed this object.
}

}  // namespace

std::unique_ptr<FleetClient> FleetClient::Create(const std::string& router_address,
                                                 Listener& listener, const FleetAccess& access) {
  return std::make_unique<FleetClientImpl>(router_address, listener, access);
}

}  // namespace tandem::rpc
