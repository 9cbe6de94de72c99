#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "common/transfer/ucx_local.h"
#include "common/transfer/ucx_message.h"
#include "common/transfer/ucx_peer_table.h"
#include "common/transfer/ucx_receiver.h"
#include "common/transfer/ucx_sender.h"
#include "common/transfer/ucx_socket_guard.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {
namespace {

constexpr int kProgressBatch = 16;
// UCX 1.13 skips its keepalive on all but every 32nd call of ucp_worker_progress.
constexpr int kCallsToKeepalive = 32;
// How long a transport that shuts down waits for UCX to give its requests back.
constexpr absl::Duration kShutdownMax = absl::Seconds(1);
// Messages dropped between two log lines.
constexpr int64_t kLogEveryDrops = 1000;

// Ties the parts together: routes what arrives to the peer table or the receiver, and moves all of
// them on in Progress. UCX calls back only inside ucp_worker_progress and ucp_worker_destroy.
class UcxTransport final : public KvTransport, private UcxMessageSink {
 public:
  explicit UcxTransport(const UcxOptions& options)
      : guard_(options.fleet_secret), local_(options) {}
  // Finds the transports and begins to listen. Call once, before everything else.
  absl::Status Start();
  ~UcxTransport() override;

  void SetListener(Listener* listener) override {
    listener_ = listener;
    receiver_.SetListener(listener);
  }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override {
    const UcxSocketGuard::Scope scope(guard_);
    return peers_.Connect(peer);
  }
  void Disconnect(PeerId peer) override {
    const UcxSocketGuard::Scope scope(guard_);
    peers_.Disconnect(peer);
  }
  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override;
  std::string TransportName(PeerId peer) const override;
  Refusals refusals() const override { return {guard_.refused(), dropped_messages_}; }
  bool Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override { wake_event_->Wake(); }
  PayloadStore* payloads() override { return local_.options().device.get(); }

 private:
  static ucs_status_t OnControlMessage(void* transport, const void* header, size_t header_bytes,
                                       void* data, size_t data_bytes,
                                       const ucp_am_recv_param_t* param);
  void OnMessage(const UcxMessage& message) override;
  absl::Status Route(const UcxMessage& message);
  void CountDropped(absl::string_view why);
  bool ProgressWorker(UcxWorker& worker, int idle_calls_max);
  // Runs completions and ends lost peers.
  bool FinishRound();

  // Public calls run in its scope: any of them may make UCX connect.
  const UcxSocketGuard guard_;
  std::unique_ptr<WakeEvent> wake_event_;
  UcxLocal local_;
  UcxSender sender_;
  UcxReceiver receiver_{local_};
  UcxPeerTable peers_{local_, sender_, receiver_, *this};
  std::string address_;
  Listener* listener_ = nullptr;
  int64_t dropped_messages_ = 0;
  bool waited_ = false;  // since the last Progress
};

absl::Status UcxTransport::Start() {
  const UcxSocketGuard::Scope scope(guard_);
  ASSIGN_OR_RETURN(wake_event_, WakeEvent::Create());
  RETURN_IF_ERROR(local_.Start(&UcxTransport::OnControlMessage, this));
  address_ = local_.address().Serialize(local_.options().fleet_secret);
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  const UcxSocketGuard::Scope scope(guard_);
  SetListener(nullptr);
  peers_.LoseAll(absl::CancelledError("the transport is shutting down"));
  const absl::Time give_up = RealClock().Now() + kShutdownMax;
  while (peers_.size() > 0 && RealClock().Now() < give_up) Progress();
  if (peers_.size() > 0) {
    Log(LogLevel::kError, "UCX still held requests when its transport closed",
        {{"peers", peers_.size()}});
  }
  // UCX gives up what it kept; its callbacks use the peers, the sender and the receiver.
  peers_.DestroyShmEndpoints();
  local_.StopControl();
}

void UcxTransport::Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
                        absl::AnyInvocable<void(const absl::Status&)> done) {
  const UcxSocketGuard::Scope scope(guard_);
  auto send = std::make_unique<UcxSend>();
  send->done = std::move(done);
  UcxPeer* to = peers_.Find(peer);
  if (to == nullptr || to->lost) {
    sender_.Finish(std::move(send),
                   absl::UnavailableError(absl::StrCat("KV peer ", peer.value(), " is gone")));
    return;
  }
  const std::string frame_bytes = frame.SerializeAsString();
  const UcxHeader header = {.kind = UcxMessageKind::kFrame,
                            .origin = local_.origin(),
                            .connection = 0,
                            .body = frame_bytes};
  send->header = header.Serialize();
  if (send->header.size() > local_.header_bytes_max()) {
    const absl::Status status =
        absl::InvalidArgumentError(absl::StrCat("KV frame header of ", send->header.size(),
                                                " bytes, UCX takes ", local_.header_bytes_max()));
    sender_.Finish(std::move(send), status);
    return;
  }
  send->pieces.reserve(payload.size());
  for (const absl::Span<const std::byte> piece : payload) {
    send->pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
    send->memory = local_.MemoryOf(piece.data());
  }
  send->peer = to;
  if (to->state != UcxPeer::State::kOpen) {
    to->waiting.push_back(std::move(send));
  } else {
    sender_.Start(std::move(send), to->over_shm);
  }
}

// Returning UCS_OK without starting a receive drops the payload, wherever it is.
ucs_status_t UcxTransport::OnControlMessage(void* transport, const void* header,
                                            size_t header_bytes, void* data, size_t data_bytes,
                                            const ucp_am_recv_param_t* param) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  self.OnMessage({.worker = &self.local_.control(),
                  .shm_peer = nullptr,
                  .header = absl::string_view(static_cast<const char*>(header), header_bytes),
                  .data = data,
                  .data_bytes = data_bytes,
                  .rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0});
  return UCS_OK;
}

void UcxTransport::OnMessage(const UcxMessage& message) {
  if (const absl::Status routed = Route(message); !routed.ok()) CountDropped(routed.message());
}

// An error says why the message is dropped.
absl::Status UcxTransport::Route(const UcxMessage& message) {
  const std::optional<UcxHeader> header = UcxHeader::Parse(message.header);
  if (!header.has_value())
    return absl::InvalidArgumentError(absl::StrCat(
        "the message's header has ", message.header.size(), " bytes, fewer than one needs"));
  const bool over_shm = message.shm_peer != nullptr;
  if (header->kind == UcxMessageKind::kHello && !over_shm) return peers_.OnHello(*header);
  UcxPeer* from = peers_.FindByOrigin(header->origin);
  if (from == nullptr || (over_shm && message.shm_peer != from)) {
    return absl::UnavailableError("the message came from a peer that has not greeted, or has left");
  }
  if (header->kind == UcxMessageKind::kFrame) {
    return receiver_.OnFrame(*from, header->body, message);
  }
  return peers_.OnGreeting(*from, *header, over_shm);
}

void UcxTransport::CountDropped(absl::string_view why) {
  if (dropped_messages_++ % kLogEveryDrops != 0) return;
  Log(LogLevel::kWarning, "dropped a KV message",
      {{"reason", why}, {"dropped", dropped_messages_}});
}

bool UcxTransport::FinishRound() {
  const bool completed = sender_.RunCompletions();
  const std::vector<std::unique_ptr<UcxPeer>> ended = peers_.TakeEnded();
  for (const std::unique_ptr<UcxPeer>& peer : ended) {
    if (!peer->silent && listener_ != nullptr) listener_->OnPeerLost(peer->id, peer->why);
  }
  return completed || !ended.empty();
}

// Bounded, so that a busy peer does not delay commands and deadlines.
bool UcxTransport::ProgressWorker(UcxWorker& worker, int idle_calls_max) {
  bool moved = false;
  for (int i = 0; i < kProgressBatch && idle_calls_max > 0;) {
    if (ucp_worker_progress(worker.handle()) == 0) {
      --idle_calls_max;
      continue;
    }
    ++i;
    moved = true;
    if (sender_.has_finished() || peers_.ending()) break;
  }
  return moved;
}

bool UcxTransport::Progress() {
  const UcxSocketGuard::Scope scope(guard_);
  receiver_.BeginRound(RealClock().Now());
  // After a sleep UCX is called more often than it has work, because it looks for dead peers on
  // every 32nd call only. Shared-memory workers need no such look: the death of their peers breaks
  // the control connection.
  bool moved =
      ProgressWorker(local_.control(), std::exchange(waited_, false) ? kCallsToKeepalive : 1);
  // By index: a greeting may append a peer meanwhile. Nothing removes one before FinishRound.
  for (size_t i = 0; i < peers_.shm_peers().size(); ++i) {
    moved = ProgressWorker(*peers_.shm_peers()[i]->shm->worker, 1) || moved;
  }
  return FinishRound() || moved;
}

void UcxTransport::Wait(absl::Duration timeout) {
  if (sender_.has_finished()) return;
  waited_ = true;
  std::vector<int> fds;
  fds.reserve(peers_.shm_peers().size() + 1);
  if (!local_.control().Arm()) return;
  fds.push_back(local_.control().fd());
  for (const UcxPeer* peer : peers_.shm_peers()) {
    if (!peer->shm->worker->Arm()) return;
    fds.push_back(peer->shm->worker->fd());
  }
  wake_event_->Wait(fds, peers_.ending() ? std::min(timeout, absl::Milliseconds(1)) : timeout);
}

std::string UcxTransport::TransportName(PeerId peer) const {
  const UcxPeer* known = peers_.Find(peer);
  if (known == nullptr || known->state != UcxPeer::State::kOpen) return "unknown";
  return absl::StrCat(known->over_shm ? "shm" : "tcp",
                      local_.options().device == nullptr ? "" : "+device");
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvTransport>> NewUcxTransport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace tandem::transfer
