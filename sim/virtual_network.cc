#include "sim/virtual_network.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {

std::unique_ptr<VirtualTransport> VirtualNetwork::NewTransport(const std::string& address) {
  return std::make_unique<VirtualTransport>(*this, address);
}

absl::Duration VirtualNetwork::WireTime(const Packet& packet) const {
  return absl::Seconds(static_cast<double>(packet.payload.size()) / faults_.bytes_per_second);
}

void VirtualNetwork::Transmit(Packet packet, absl::AnyInvocable<void(const absl::Status&)> done) {
  ++frames_sent_;
  const absl::Duration wire = WireTime(packet);
  const auto deliver = [this](const Packet& p) {
    const auto found = transports_.find(p.to);
    if (found != transports_.end()) found->second->Deliver(p);
  };
  if (faults_.corrupt_one_in != 0 && !packet.payload.empty() &&
      world_.Chance(faults_.corrupt_one_in)) {
    packet.payload[world_.random().Below(packet.payload.size())] ^= 0x20;
  }
  if (world_.Chance(faults_.drop_one_in)) {
    ++frames_dropped_;
  } else {
    const int copies = world_.Chance(faults_.duplicate_one_in) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      world_.After(wire + world_.RandomDelay(faults_.delay_max),
                   [deliver, packet] { deliver(packet); });
    }
  }
  world_.After(wire, [this, from = packet.from, done = std::move(done)]() mutable {
    done(absl::OkStatus());
    const auto found = transports_.find(from);
    if (found != transports_.end() && found->second->on_activity_) found->second->on_activity_();
  });
}

VirtualTransport::VirtualTransport(VirtualNetwork& network, std::string address)
    : network_(network), address_(std::move(address)) {
  network_.transports_[address_] = this;
}

VirtualTransport::~VirtualTransport() { network_.transports_.erase(address_); }

transfer::PeerId VirtualTransport::PeerOf(const std::string& address) {
  const auto [entry, added] = peers_.try_emplace(address, transfer::PeerId(next_peer_));
  if (added) addresses_[transfer::PeerId(next_peer_++)] = address;
  return entry->second;
}

absl::StatusOr<transfer::PeerId> VirtualTransport::Connect(const transfer::PeerAddress& peer) {
  return PeerOf(peer.transport_address);
}

void VirtualTransport::Disconnect(transfer::PeerId peer) {
  const auto found = addresses_.find(peer);
  if (found == addresses_.end()) return;
  peers_.erase(found->second);
  addresses_.erase(found);
}

void VirtualTransport::Send(transfer::PeerId peer, const v1::KvFrame& frame,
                            transfer::GatherList payload,
                            absl::AnyInvocable<void(const absl::Status&)> done) {
  VirtualNetwork::Packet packet;
  packet.from = address_;
  packet.frame = frame;
  for (const absl::Span<const std::byte> piece : payload) {
    packet.payload.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  if (const auto found = addresses_.find(peer); found != addresses_.end())
    packet.to = found->second;
  network_.Transmit(std::move(packet), std::move(done));
}

void VirtualTransport::Deliver(const VirtualNetwork::Packet& packet) {
  const uint64_t receive_id = next_receive_++;
  const auto place =
      listener_->OnFrame(PeerOf(packet.from), packet.frame, packet.payload.size(), receive_id);
  if (place.has_value() && !packet.payload.empty()) {
    const char* source = packet.payload.data();
    for (const absl::Span<std::byte> piece : *place) {
      std::memcpy(piece.data(), source, piece.size());
      source += piece.size();
    }
    const absl::Time now = network_.world_.now();
    listener_->OnPayload(receive_id, absl::OkStatus(),
                         {.began = now - network_.WireTime(packet), .landed = now});
  }
  if (on_activity_) on_activity_();
}

}  // namespace tandem::sim
