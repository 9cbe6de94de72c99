#include "common/transfer/sealed_transport.h"

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "common/transfer/payload_buffers.h"
#include "common/transfer/sealed_session.h"

namespace tandem::transfer {
namespace {

using Done = absl::AnyInvocable<void(const absl::Status&)>;

class SealedTransport final : public KvTransport, private KvTransport::Listener {
 public:
  SealedTransport(const SealedTransportOptions& options, std::unique_ptr<KvTransport> other)
      : options_(options),
        session_options_{.agreement = {.fleet_secret = options.fleet_secret,
                                       .identity = TransportIdentity(other->address()),
                                       .encrypts = options.encrypts},
                         .limits = options.limits},
        buffers_(static_cast<size_t>(options.sealed_bytes_max)),
        other_(std::move(other)) {}
  // Frames that were not sent may hold room in the other transport's memory.
  ~SealedTransport() override {
    backlog_.clear();
    finished_.clear();
    peers_.clear();
  }

  void SetListener(KvTransport::Listener* listener) override {
    listener_ = listener;
    other_->SetListener(listener == nullptr ? nullptr : this);
  }
  const std::string& address() const override { return other_->address(); }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) override;
  Refusals refusals() const override {
    Refusals refusals = other_->refusals();
    refusals.connections += handshakes_refused_;
    refusals.messages += frames_dropped_;
    return refusals;
  }
  std::string TransportName(PeerId peer) const override {
    const auto known = peers_.find(peer);
    if (known == peers_.end() || !known->second->session.open()) return "unknown";
    return absl::StrCat(other_->TransportName(peer), options_.encrypts ? "+encrypted" : "");
  }
  PayloadStore* payloads() override { return other_->payloads(); }
  int64_t BytesAheadMax(PeerId peer) const override { return other_->BytesAheadMax(peer); }
  bool authenticates_payloads() const override { return options_.encrypts; }
  bool Progress() override;
  void Wait(absl::Duration timeout) override {
    if (finished_.empty() && lost_.empty()) other_->Wait(timeout);
  }
  void Wake() override { other_->Wake(); }

 private:
  struct Outgoing {
    PeerId peer;
    v1::KvFrame frame;
    GatherList payload;
    Done done;
  };
  struct Peer {
    explicit Peer(const SealedSession::Options& options) : session(options) {}
    SealedSession session;
    absl::Time give_up;  // when it is not open by then
    // Bound: the senders' frames in flight.
    std::vector<Outgoing> waiting;
  };
  // A payload that is landing, encrypted.
  struct Landing {
    SealedSession::PayloadKey key;
    ScatterList place;
    uint64_t checksum = 0;
  };
  struct Lost {
    PeerId peer;
    absl::Status why;
  };

  Peer& AddPeer(PeerId id);
  void StartSend(Peer& peer, Outgoing send);
  // Whether it found room for the payload.
  bool TrySend(Peer& peer, Outgoing& send);
  void StartSends(Peer& peer);
  // Ends the connection in the next Progress: its messages may be what is being worked on now.
  void LoseSoon(PeerId peer, const absl::Status& why) { lost_.push_back({peer, why}); }
  // Forgets the peer and completes its frames that were not sent.
  void Forget(PeerId peer, const absl::Status& why);
  bool EndLost();
  bool RunFinished();
  void SendBacklog();
  void Drop(PeerId from, const absl::Status& why, int64_t& count);

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override;
  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override;
  void OnPeerLost(PeerId peer, const absl::Status& status) override {
    Forget(peer, status);
    RunFinished();
    if (listener_ != nullptr) listener_->OnPeerLost(peer, status);
  }
  void OnHandshake(PeerId from, const v1::KvHandshake& message);
  void SendHandshake(PeerId to, v1::KvHandshake message);

  absl::Time now() const { return options_.clock->Now(); }

  const SealedTransportOptions options_;
  const SealedSession::Options session_options_;
  // Bound: the other transport's connections.
  absl::btree_map<PeerId, std::unique_ptr<Peer>> peers_;
  int64_t opening_ = 0;  // of peers_, not open yet
  // Payloads that found no buffer. Bound: the senders' frames in flight.
  std::deque<Outgoing> backlog_;
  // Bound: the senders' frames in flight, emptied each round.
  std::vector<std::pair<Done, absl::Status>> finished_;
  // Bound: peers_, emptied each round.
  std::vector<Lost> lost_;
  // Bound: the payloads of open leases.
  absl::flat_hash_map<uint64_t, Landing> landing_;
  int64_t handshakes_refused_ = 0, frames_dropped_ = 0;
  absl::Time next_drop_log_ = absl::InfinitePast();
  KvTransport::Listener* listener_ = nullptr;
  PayloadBuffers buffers_;
  const std::unique_ptr<KvTransport> other_;  // last: it sends from buffers_
};

// ---- Connections ----------------------------------------------------------------------------

SealedTransport::Peer& SealedTransport::AddPeer(PeerId id) {
  std::unique_ptr<Peer>& peer = peers_[id];
  peer = std::make_unique<Peer>(session_options_);
  peer->give_up = now() + options_.agree_within;
  ++opening_;
  return *peer;
}

absl::StatusOr<PeerId> SealedTransport::Connect(const PeerAddress& peer) {
  const absl::StatusOr<PeerId> id = other_->Connect(peer);
  if (!id.ok() || peers_.contains(*id)) return id;
  SendHandshake(*id, AddPeer(*id).session.Offer(TransportIdentity(peer.transport_address)));
  return id;
}

void SealedTransport::Disconnect(PeerId peer) {
  Forget(peer, absl::CancelledError("the connection was closed"));
  other_->Disconnect(peer);
}

void SealedTransport::Forget(PeerId id, const absl::Status& why) {
  const auto known = peers_.find(id);
  if (known == peers_.end()) return;
  const std::unique_ptr<Peer> peer = std::move(known->second);
  peers_.erase(known);
  if (!peer->session.open()) --opening_;
  for (Outgoing& send : peer->waiting) finished_.push_back({std::move(send.done), why});
  for (size_t i = 0; i < backlog_.size();) {
    if (backlog_[i].peer != id) {
      ++i;
      continue;
    }
    finished_.push_back({std::move(backlog_[i].done), why});
    backlog_.erase(backlog_.begin() + static_cast<ptrdiff_t>(i));
  }
}

bool SealedTransport::EndLost() {
  if (opening_ > 0) {
    const absl::Time time = now();
    for (const auto& [id, peer] : peers_) {
      if (peer->session.open() || time < peer->give_up) continue;
      peer->give_up = absl::InfiniteFuture();
      ++handshakes_refused_;
      LoseSoon(id,
               absl::UnavailableError(absl::StrCat("the peer did not agree on keys within ",
                                                   absl::FormatDuration(options_.agree_within))));
    }
  }
  const std::vector<Lost> lost = std::exchange(lost_, {});
  for (const Lost& one : lost) {
    if (!peers_.contains(one.peer)) continue;
    Log(LogLevel::kWarning, "a KV connection cannot be used",
        {{"peer", one.peer.value()}, {"reason", one.why.message()}});
    Forget(one.peer, one.why);
    other_->Disconnect(one.peer);
    RunFinished();
    if (listener_ != nullptr) listener_->OnPeerLost(one.peer, one.why);
  }
  return !lost.empty();
}

void SealedTransport::SendHandshake(PeerId to, v1::KvHandshake message) {
  v1::KvFrame frame;
  *frame.mutable_handshake() = std::move(message);
  other_->Send(to, frame, {}, [](const absl::Status&) {});
}

void SealedTransport::OnHandshake(PeerId from, const v1::KvHandshake& message) {
  const auto known = peers_.find(from);
  Peer& peer = known == peers_.end() ? AddPeer(from) : *known->second;
  const bool was_open = peer.session.open();
  absl::StatusOr<std::optional<v1::KvHandshake>> answer = peer.session.OnHandshake(message, now());
  if (!answer.ok()) {
    Drop(from, answer.status(), handshakes_refused_);
    // Nothing but this message speaks for the connection; others end at their deadline.
    if (absl::IsResourceExhausted(answer.status())) LoseSoon(from, answer.status());
    return;
  }
  const bool answers = answer->has_value();
  if (answers) SendHandshake(from, *std::move(*answer));
  if (!peer.session.failure().ok()) {
    // The initiator ends the connection, once it has read why; at its deadline this end does.
    if (answers) return Drop(from, peer.session.failure(), handshakes_refused_);
    ++handshakes_refused_;
    return LoseSoon(from, peer.session.failure());
  }
  if (was_open || !peer.session.open()) return;
  --opening_;
  // The responder sends nothing before a frame has confirmed the keys.
  const absl::StatusOr<v1::KvSealed> confirmation = peer.session.Seal(nullptr, {}, nullptr, now());
  if (!confirmation.ok()) return LoseSoon(from, confirmation.status());
  v1::KvFrame frame;
  *frame.mutable_sealed() = *confirmation;
  other_->Send(from, frame, {}, [](const absl::Status&) {});
  StartSends(peer);
}

// ---- Sending --------------------------------------------------------------------------------

void SealedTransport::Send(PeerId id, const v1::KvFrame& frame, GatherList payload, Done done) {
  Outgoing send = {
      .peer = id, .frame = frame, .payload = std::move(payload), .done = std::move(done)};
  const auto peer = peers_.find(id);
  if (peer == peers_.end()) {
    finished_.push_back({std::move(send.done),
                         absl::UnavailableError(absl::StrCat("KV peer ", id.value(), " is gone"))});
  } else if (!peer->second->session.open()) {
    peer->second->waiting.push_back(std::move(send));
  } else {
    StartSend(*peer->second, std::move(send));
  }
}

void SealedTransport::StartSends(Peer& peer) {
  for (Outgoing& send : std::exchange(peer.waiting, {})) StartSend(peer, std::move(send));
}

void SealedTransport::StartSend(Peer& peer, Outgoing send) {
  const bool overtakes = !backlog_.empty() && options_.encrypts && !send.payload.empty();
  if (overtakes || !TrySend(peer, send)) backlog_.push_back(std::move(send));
}

bool SealedTransport::TrySend(Peer& peer, Outgoing& send) {
  PayloadBuffers::Buffer buffer;
  const size_t bytes = Bytes(send.payload);
  if (options_.encrypts && bytes > 0) {
    buffer = buffers_.Take(bytes);
    if (buffer.data == nullptr) return false;
  }
  absl::StatusOr<v1::KvSealed> sealed =
      peer.session.Seal(&send.frame, send.payload, buffer.data.get(), now());
  if (!sealed.ok()) {
    if (buffer.data != nullptr) buffers_.Give(std::move(buffer));
    finished_.push_back({std::move(send.done), sealed.status()});
    LoseSoon(send.peer, sealed.status());
    return true;
  }
  v1::KvFrame frame;
  *frame.mutable_sealed() = *std::move(sealed);
  if (buffer.data == nullptr) {
    other_->Send(send.peer, frame, std::move(send.payload), std::move(send.done));
    return true;
  }
  GatherList encrypted = {absl::MakeConstSpan(buffer.data.get(), bytes)};
  other_->Send(send.peer, frame, std::move(encrypted),
               [this, buffer = std::move(buffer),
                done = std::move(send.done)](const absl::Status& status) mutable {
                 buffers_.Give(std::move(buffer));
                 if (done) done(status);
               });
  return true;
}

void SealedTransport::SendBacklog() {
  while (!backlog_.empty()) {
    const auto peer = peers_.find(backlog_.front().peer);
    // Forget took the frames of lost peers out.
    if (peer != peers_.end() && !TrySend(*peer->second, backlog_.front())) return;
    backlog_.pop_front();
  }
}

bool SealedTransport::Progress() {
  bool moved = other_->Progress();
  SendBacklog();
  moved = EndLost() || moved;
  return RunFinished() || moved;
}

// Completions may send more; what finishes meanwhile waits for the next call.
bool SealedTransport::RunFinished() {
  if (finished_.empty()) return false;
  for (auto& [done, status] : std::exchange(finished_, {})) {
    if (done) done(status);
  }
  return true;
}

// ---- Receiving ------------------------------------------------------------------------------

void SealedTransport::Drop(PeerId from, const absl::Status& why, int64_t& count) {
  ++count;
  if (now() < next_drop_log_) return;
  next_drop_log_ = now() + absl::Seconds(1);
  Log(LogLevel::kWarning, "refused a KV message",
      {{"peer", from.value()},
       {"reason", why.message()},
       {"frames", frames_dropped_},
       {"handshakes", handshakes_refused_}});
}

std::optional<ScatterList> SealedTransport::OnFrame(PeerId from, const v1::KvFrame& frame,
                                                    size_t payload_bytes, uint64_t receive_id) {
  if (frame.has_handshake() && payload_bytes == 0) {
    OnHandshake(from, frame.handshake());
    return std::nullopt;
  }
  const auto known = peers_.find(from);
  if (known == peers_.end() || !frame.has_sealed()) {
    Drop(from, absl::PermissionDeniedError("a frame is not sealed, or came before a handshake"),
         frames_dropped_);
    return std::nullopt;
  }
  Peer& peer = *known->second;
  const bool was_open = peer.session.open();
  absl::StatusOr<SealedSession::Opened> opened = peer.session.Open(frame.sealed(), payload_bytes);
  if (!opened.ok()) {
    Drop(from, opened.status(), frames_dropped_);
    return std::nullopt;
  }
  if (!was_open) {
    --opening_;
    StartSends(peer);
  }
  if (!opened->frame.has_value()) return std::nullopt;
  std::optional<ScatterList> place =
      listener_->OnFrame(from, *opened->frame, payload_bytes, receive_id);
  if (place.has_value() && opened->payload.has_value()) {
    landing_[receive_id] = {.key = *std::move(opened->payload),
                            .place = *place,
                            .checksum = opened->frame->data().payload_checksum()};
  }
  return place;
}

void SealedTransport::OnPayload(uint64_t receive_id, const absl::Status& status,
                                const ReceiveInterval& interval) {
  auto landed = landing_.extract(receive_id);
  if (landed.empty() || !status.ok()) return listener_->OnPayload(receive_id, status, interval);
  const Landing& landing = landed.mapped();
  absl::Status result;
  ReceiveInterval decrypted = interval;
  if (landing.key.Open(landing.place)) {
    decrypted.checksum = landing.checksum;
  } else {
    result = absl::DataLossError("the payload's tag is wrong: it was damaged on its way");
  }
  listener_->OnPayload(receive_id, result, decrypted);
}

}  // namespace

std::unique_ptr<KvTransport> NewSealedTransport(const SealedTransportOptions& options,
                                                std::unique_ptr<KvTransport> other) {
  return std::make_unique<SealedTransport>(options, std::move(other));
}

}  // namespace tandem::transfer
