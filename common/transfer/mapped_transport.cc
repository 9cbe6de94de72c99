#include "common/transfer/mapped_transport.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "common/transfer/ends_by_peer.h"
#include "common/transfer/mapped_context.h"
#include "common/transfer/mapped_receiver.h"
#include "common/transfer/mapped_sender.h"

namespace tandem::transfer {
namespace {

class MappedTransport final : public KvTransport, private KvTransport::Listener {
 public:
  MappedTransport(const MappedTransportOptions& options, const kv::BlockArena& arena,
                  std::unique_ptr<ArenaDescriptorServer> server, std::unique_ptr<KvTransport> other)
      : context_(options, arena, std::move(server), std::move(other)) {
    context_.other->SetListener(this);
  }
  ~MappedTransport() override {
    senders_.ForEach([](MappedSender& sender) {
      sender.End(absl::CancelledError("this process is shutting down"));
    });
  }

  void SetListener(KvTransport::Listener* listener) override { context_.listener = listener; }
  const std::string& address() const override { return context_.other->address(); }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override {
    return context_.other->Connect(peer);
  }
  void Disconnect(PeerId peer) override {
    EndMappings(peer, absl::CancelledError("this node closed the connection"));
    context_.other->Disconnect(peer);
  }

  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    if (!payload.empty()) {
      MappedSender* sender = SenderTo(peer);
      if (sender != nullptr && sender->Takes(payload)) {
        return sender->Send(frame, std::move(payload), std::move(done));
      }
    }
    context_.other->Send(peer, frame, std::move(payload), std::move(done));
  }

  int64_t BytesAheadMax(PeerId peer) const override {
    return senders_.IsOpen(peer) ? context_.options.bytes_ahead_max
                                 : context_.other->BytesAheadMax(peer);
  }
  Refusals refusals() const override { return context_.other->refusals(); }
  std::string TransportName(PeerId peer) const override {
    const bool mapped = senders_.IsOpen(peer) || receivers_.IsOpen(peer);
    return absl::StrCat(context_.other->TransportName(peer), mapped ? "+mapped" : "");
  }
  PayloadStore* payloads() override { return context_.other->payloads(); }

  bool Progress() override {
    bool moved = context_.other->Progress();
    if (context_.server != nullptr) moved = context_.server->Progress(context_.now()) || moved;
    moved = senders_.Progress() || moved;
    return receivers_.Progress() || moved;
  }

  // The descriptor's socket cannot end a wait: while one is awaited the wait is short.
  void Wait(absl::Duration timeout) override {
    const auto opening = [](const auto& end) { return end.opening(); };
    const int awaited = senders_.Count(opening) + receivers_.Count(opening);
    context_.other->Wait(awaited > 0 ? std::min(timeout, kOpeningWait) : timeout);
  }
  void Wake() override { context_.other->Wake(); }

 private:
  static constexpr absl::Duration kOpeningWait = absl::Milliseconds(1);

  // Offers the arena with the first payload that finds the peer on shared memory; null before.
  MappedSender* SenderTo(PeerId peer) {
    if (context_.server == nullptr || ending_ == peer) return nullptr;
    MappedSender* const known = senders_.Find(peer);
    if (known != nullptr) return known;
    if (!absl::StartsWith(context_.other->TransportName(peer), "shm")) return nullptr;
    return &senders_.Add(peer, std::make_unique<MappedSender>(context_, peer));
  }

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    if (frame.has_mapping()) {
      OnMapping(from, frame);
      return std::nullopt;
    }
    if (frame.has_via_mapping()) {
      MappedReceiver* const receiver = receivers_.Find(from);
      if (receiver != nullptr && receiver->number() == frame.via_mapping().mapping())
        receiver->OnHeader(frame);
      return std::nullopt;  // no payload follows the header
    }
    if (context_.listener == nullptr) return std::nullopt;
    return context_.listener->OnFrame(from, frame, payload_bytes, receive_id);
  }
  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override {
    if (context_.listener != nullptr) context_.listener->OnPayload(receive_id, status, interval);
  }
  void OnPeerLost(PeerId peer, const absl::Status& status) override {
    EndMappings(peer, status);
    if (context_.listener != nullptr) context_.listener->OnPeerLost(peer, status);
  }

  void OnMapping(PeerId from, const v1::KvFrame& frame) {
    const v1::KvMapping& mapping = frame.mapping();
    if (!context_.auth.Verify(frame)) {
      Log(LogLevel::kWarning, "rejected a KV mapping frame: its tag is not of this fleet's secret",
          {{"peer", from.value()}});
      return;
    }
    if (mapping.from_reader()) {
      MappedSender* const sender = senders_.Find(from);
      if (sender != nullptr) sender->OnFrame(mapping);
      return;
    }
    MappedReceiver* const known = receivers_.Find(from);
    if (mapping.kind() == v1::KvMapping::CLOSED) {
      if (known != nullptr && known->number() == mapping.number()) known->Unmap();
      return;
    }
    if (mapping.kind() != v1::KvMapping::OFFER) return;
    // A repeat, or older than what is there.
    if (known != nullptr && mapping.number() <= known->number()) return;
    EndReceiver(from);
    receivers_.Add(from,
                   std::make_unique<MappedReceiver>(context_, from, mapping, CheckOffer(mapping)));
  }

  absl::Status CheckOffer(const v1::KvMapping& offer) const {
    const int mapped = receivers_.Count(
        [](const MappedReceiver& receiver) { return receiver.open() || receiver.opening(); });
    if (mapped >= context_.options.mappings_max) {
      return absl::ResourceExhaustedError(absl::StrCat(
          mapped, " arenas are mapped, expected fewer than ", context_.options.mappings_max));
    }
    const uint64_t rest = context_.options.mapped_bytes_max - context_.mapped_bytes;
    if (offer.arena_bytes() == 0 || offer.arena_bytes() > rest) {
      return absl::ResourceExhaustedError(absl::StrCat("the arena has ", offer.arena_bytes(),
                                                       " bytes, expected at most the ", rest,
                                                       " that this process may still map"));
    }
    return absl::OkStatus();
  }

  void EndMappings(PeerId peer, const absl::Status& status) {
    // Who hears that a send has ended may send again.
    ending_ = peer;
    if (MappedSender* const sender = senders_.Remove(peer); sender != nullptr) sender->End(status);
    ending_.reset();
    EndReceiver(peer);
  }
  void EndReceiver(PeerId peer) {
    if (MappedReceiver* const receiver = receivers_.Remove(peer); receiver != nullptr)
      receiver->Unmap();
  }

  MappedContext context_;
  std::optional<PeerId> ending_;  // is offered no arena: its connection ends
  EndsByPeer<MappedSender> senders_;
  // Of them, MappedTransportOptions::mappings_max (64) are mapped.
  EndsByPeer<MappedReceiver> receivers_;
};

}  // namespace

std::unique_ptr<KvTransport> NewMappedTransport(const MappedTransportOptions& options,
                                                const kv::BlockArena& arena,
                                                std::unique_ptr<KvTransport> other) {
  std::unique_ptr<ArenaDescriptorServer> server;
  if (arena.descriptor() >= 0) {
    auto started = ArenaDescriptorServer::Start(options.fleet_secret, arena.descriptor());
    if (started.ok()) {
      server = *std::move(started);
    } else {
      Log(LogLevel::kWarning, "KV arena cannot be offered to processes of this host",
          {{"reason", started.status().message()}});
    }
  }
  return std::make_unique<MappedTransport>(options, arena, std::move(server), std::move(other));
}

}  // namespace tandem::transfer
