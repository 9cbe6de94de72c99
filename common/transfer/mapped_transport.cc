#include "common/transfer/mapped_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
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
    for (auto& [peer, sender] : senders_)
      sender->End(absl::CancelledError("this process is shutting down"));
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
    const auto sender = senders_.find(peer);
    if (sender == senders_.end() || !sender->second->open()) {
      return context_.other->BytesAheadMax(peer);
    }
    return context_.options.bytes_ahead_max;
  }
  Refusals refusals() const override { return context_.other->refusals(); }
  std::string TransportName(PeerId peer) const override {
    const auto sender = senders_.find(peer);
    const auto receiver = receivers_.find(peer);
    const bool mapped = (sender != senders_.end() && sender->second->open()) ||
                        (receiver != receivers_.end() && receiver->second->open());
    return absl::StrCat(context_.other->TransportName(peer), mapped ? "+mapped" : "");
  }
  PayloadStore* payloads() override { return context_.other->payloads(); }

  bool Progress() override {
    ended_senders_.clear();
    ended_receivers_.clear();
    bool moved = context_.other->Progress();
    if (context_.server != nullptr) moved = context_.server->Progress(context_.now()) || moved;
    // By key: Progress() of one may end connections, its own included.
    for (auto it = senders_.begin(); it != senders_.end();) {
      const PeerId peer = it->first;
      moved = it->second->Progress() || moved;
      it = senders_.upper_bound(peer);
    }
    for (auto it = receivers_.begin(); it != receivers_.end();) {
      const PeerId peer = it->first;
      moved = it->second->Progress() || moved;
      it = receivers_.upper_bound(peer);
    }
    return moved;
  }

  // The descriptor's socket cannot end a wait: while one is awaited the wait is short.
  void Wait(absl::Duration timeout) override {
    bool opening = false;
    for (const auto& [peer, sender] : senders_) opening = opening || sender->opening();
    for (const auto& [peer, receiver] : receivers_) opening = opening || receiver->opening();
    context_.other->Wait(opening ? std::min(timeout, kOpeningWait) : timeout);
  }
  void Wake() override { context_.other->Wake(); }

 private:
  static constexpr absl::Duration kOpeningWait = absl::Milliseconds(1);

  // Offers the arena with the first payload that finds the peer on shared memory; null before.
  MappedSender* SenderTo(PeerId peer) {
    if (context_.server == nullptr) return nullptr;
    const auto known = senders_.find(peer);
    if (known != senders_.end()) return known->second.get();
    if (!absl::StartsWith(context_.other->TransportName(peer), "shm")) return nullptr;
    return (senders_[peer] = std::make_unique<MappedSender>(context_, peer)).get();
  }

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    if (frame.has_mapping()) {
      OnMapping(from, frame);
      return std::nullopt;
    }
    if (frame.has_via_mapping()) {
      const auto receiver = receivers_.find(from);
      if (receiver != receivers_.end() &&
          receiver->second->number() == frame.via_mapping().mapping()) {
        receiver->second->OnHeader(frame);
      }
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
      const auto sender = senders_.find(from);
      if (sender != senders_.end()) sender->second->OnFrame(mapping);
      return;
    }
    const auto known = receivers_.find(from);
    if (mapping.kind() == v1::KvMapping::CLOSED) {
      if (known != receivers_.end() && known->second->number() == mapping.number()) {
        known->second->Unmap();
      }
      return;
    }
    if (mapping.kind() != v1::KvMapping::OFFER) return;
    // A repeat, or older than what is there.
    if (known != receivers_.end() && mapping.number() <= known->second->number()) return;
    EndReceiver(from);
    receivers_[from] =
        std::make_unique<MappedReceiver>(context_, from, mapping, CheckOffer(mapping));
  }

  absl::Status CheckOffer(const v1::KvMapping& offer) const {
    int mapped = 0;
    for (const auto& [peer, receiver] : receivers_) {
      mapped += receiver->open() || receiver->opening() ? 1 : 0;
    }
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
    if (const auto it = senders_.find(peer); it != senders_.end()) {
      // Destroyed in the next Progress: the sender itself may be the caller.
      ended_senders_.push_back(std::move(it->second));
      senders_.erase(it);
      MappedSender& sender = *ended_senders_.back();
      sender.End(status);
    }
    EndReceiver(peer);
  }
  void EndReceiver(PeerId peer) {
    const auto it = receivers_.find(peer);
    if (it == receivers_.end()) return;
    ended_receivers_.push_back(std::move(it->second));
    receivers_.erase(it);
    ended_receivers_.back()->Unmap();
  }

  MappedContext context_;
  // Bound: the connections of the other transport.
  absl::btree_map<PeerId, std::unique_ptr<MappedSender>> senders_;
  // Bound: the connections of the other transport; MappedTransportOptions::mappings_max (64) of
  // them are mapped.
  absl::btree_map<PeerId, std::unique_ptr<MappedReceiver>> receivers_;
  // Bound: what ended since the last Progress.
  std::vector<std::unique_ptr<MappedSender>> ended_senders_;
  std::vector<std::unique_ptr<MappedReceiver>> ended_receivers_;
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
