#include "sim/world/virtual_network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {
namespace {

// The interval between attempts to deliver a packet that a partition holds back.
constexpr absl::Duration kHoldStep = absl::Milliseconds(5);
// A dead peer's host answers with a connection reset after about an ordinary round trip.
constexpr absl::Duration kResetDelay = absl::Microseconds(300);
// A connection whose bytes are not acknowledged ends after this time.
constexpr absl::Duration kUnansweredLimit = absl::Milliseconds(100);

}  // namespace

VirtualNetwork::VirtualNetwork(World& world, const NetworkOptions& options)
    : world_(world),
      options_(options),
      blocked_(options.processes * options.processes, 0),
      rates_(options.processes * options.processes, options.bytes_per_second) {}

std::unique_ptr<VirtualTransport> VirtualNetwork::NewTransport(Process& process,
                                                               const std::string& address) {
  return std::make_unique<VirtualTransport>(*this, process, address);
}

absl::Duration VirtualNetwork::WireTime(int from, int to, size_t bytes) const {
  return absl::Seconds(static_cast<double>(bytes) / rates_[from * options_.processes + to]);
}

void VirtualNetwork::Transmit(PacketRef packet) {
  ++frames_sent_;
  if (!options_.rendezvous && !packet->copied) {
    for (const absl::Span<const std::byte> piece : packet->memory)
      packet->copy.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    packet->copied = true;
  }
  packet->corrupt = packet->bytes > 0 && world_.Chance(faults_.corrupt_one_in);
  if (world_.Chance(faults_.duplicate_one_in)) {
    auto twin = std::make_shared<Packet>(*packet);
    if (!twin->copied) {
      for (const absl::Span<const std::byte> piece : twin->memory)
        twin->copy.append(reinterpret_cast<const char*>(piece.data()), piece.size());
      twin->copied = true;
    }
    twin->send_id = 0;
    world_.After(world_.RandomDelay(options_.delay_max + faults_.delay_max),
                 [this, twin] { Arrive(twin); });
  }
  const absl::Duration wire = options_.rendezvous
                                  ? absl::ZeroDuration()
                                  : WireTime(packet->from, packet->to, packet->bytes);
  if (world_.Chance(faults_.lose_one_in)) {
    packet->sender->PostSent(packet->send_id, absl::OkStatus());
    return;
  }
  world_.After(wire + world_.RandomDelay(options_.delay_max + faults_.delay_max),
               [this, packet = std::move(packet)] { Arrive(packet); });
}

bool VirtualNetwork::MeetPartition(const PacketRef& packet, absl::AnyInvocable<void()> again) {
  if (!Blocked(packet->from, packet->to)) return false;
  if (options_.hold_when_blocked) {
    world_.After(kHoldStep, std::move(again));
  } else {
    world_.After(kUnansweredLimit,
                 [this, connection = packet->connection] { Close(connection, nullptr); });
  }
  return true;
}

void VirtualNetwork::Arrive(const PacketRef& packet) {
  if (!packet->connection->open) return;
  if (MeetPartition(packet, [this, packet] { Arrive(packet); })) return;
  VirtualTransport* receiver = packet->receiver;
  receiver->process_.Post(absl::ZeroDuration(), [packet] {
    if (packet->connection->open) packet->receiver->OnHeader(packet);
  });
}

void VirtualNetwork::Close(const std::shared_ptr<Connection>& connection,
                           const VirtualTransport* closer) {
  if (!connection->open) return;
  connection->open = false;
  for (int i = 0; i < 2; ++i) {
    VirtualTransport* end = connection->ends[i];
    if (end != nullptr && end != closer) TellLost(connection, end, connection->processes[1 - i]);
  }
}

// A partition delays this notice too.
void VirtualNetwork::TellLost(const std::shared_ptr<Connection>& connection, VirtualTransport* end,
                              int from) {
  const int to = end->process_.id();
  const bool blocked = Blocked(from, to) && options_.hold_when_blocked;
  end->process_.Post(blocked ? kHoldStep : kResetDelay, [this, connection, end, from, blocked] {
    if (blocked)
      TellLost(connection, end, from);
    else
      end->OnLost(connection);
  });
}

VirtualTransport::VirtualTransport(VirtualNetwork& network, Process& process, std::string address)
    : network_(network), process_(process), address_(std::move(address)) {
  network_.transports_[address_] = this;
}

VirtualTransport::~VirtualTransport() {
  for (const auto& [peer, connection] : connections_) {
    network_.Close(connection, this);
    for (VirtualTransport*& end : connection->ends)
      if (end == this) end = nullptr;
  }
  network_.transports_.erase(address_);
}

transfer::PeerId VirtualTransport::PeerOf(const ConnectionRef& connection) {
  for (const auto& [peer, known] : connections_)
    if (known == connection) return peer;
  const transfer::PeerId peer(next_peer_++);
  connections_[peer] = connection;
  by_address_.emplace(connection->Other(this)->address_, peer);
  return peer;
}

absl::StatusOr<transfer::PeerId> VirtualTransport::Connect(const transfer::PeerAddress& peer) {
  if (const auto it = by_address_.find(peer.transport_address); it != by_address_.end())
    return it->second;
  const auto found = network_.transports_.find(peer.transport_address);
  if (found == network_.transports_.end() || found->second == this)
    return absl::UnavailableError(absl::StrCat("no transport listens at ", peer.transport_address));
  // Ends with the last of both transports and the packets in flight.
  const auto connection = std::make_shared<VirtualNetwork::Connection>();
  connection->ends[0] = this;
  connection->ends[1] = found->second;
  connection->processes[0] = process_.id();
  connection->processes[1] = found->second->process_.id();
  // The other end learns of the connection by its first frame, but must know it now to end it.
  found->second->PeerOf(connection);
  return PeerOf(connection);
}

void VirtualTransport::Disconnect(transfer::PeerId peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  const ConnectionRef connection = found->second;
  network_.Close(connection, this);
  EndTraffic(connection, absl::CancelledError("the connection was closed here"));
}

void VirtualTransport::OnLost(const ConnectionRef& connection) {
  BeforeActivity();
  transfer::PeerId lost;
  for (const auto& [peer, known] : connections_)
    if (known == connection) lost = peer;
  if (lost == transfer::PeerId()) return;
  EndTraffic(connection, absl::UnavailableError("the connection broke"));
  if (listener_ != nullptr)
    listener_->OnPeerLost(lost, absl::UnavailableError("the connection broke"));
  Activity();
}

void VirtualTransport::EndTraffic(const ConnectionRef& connection, const absl::Status& status) {
  std::vector<uint64_t> receives, sends;
  for (const auto& [id, receive] : receives_)
    if (receive.packet->connection == connection) receives.push_back(id);
  for (const auto& [id, send] : sends_)
    if (send.connection == connection) sends.push_back(id);
  for (const uint64_t id : receives) EndReceive(id, status);
  for (const uint64_t id : sends) EndSend(id, status);
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto entry = it++;
    if (entry->second != connection) continue;
    for (auto address = by_address_.begin(); address != by_address_.end();) {
      const auto old = address++;
      if (old->second == entry->first) by_address_.erase(old);
    }
    connections_.erase(entry);
  }
}

void VirtualTransport::Send(transfer::PeerId peer, const v1::KvFrame& frame,
                            transfer::GatherList payload,
                            absl::AnyInvocable<void(const absl::Status&)> done) {
  const uint64_t send_id = next_send_++;
  const auto found = connections_.find(peer);
  SendInFlight& send = sends_[send_id];
  send.done = std::move(done);
  if (found == connections_.end() || !found->second->open) {
    PostSent(send_id, absl::UnavailableError(absl::StrCat("peer ", peer.value(), " is gone")));
    return;
  }
  send.connection = found->second;
  // The packet, its duplicate and the events that carry it.
  const auto packet = std::make_shared<VirtualNetwork::Packet>();
  packet->connection = found->second;
  packet->sender = this;
  packet->receiver = found->second->Other(this);
  packet->from = process_.id();
  packet->to = packet->receiver->process_.id();
  packet->send_id = send_id;
  packet->frame = frame;
  for (const absl::Span<const std::byte> piece : payload) packet->bytes += piece.size();
  packet->memory = std::move(payload);
  network_.Transmit(packet);
}

void VirtualTransport::PostSent(uint64_t send_id, const absl::Status& status) {
  if (send_id == 0) return;
  process_.Post(absl::Microseconds(1), [this, send_id, status] {
    BeforeActivity();
    EndSend(send_id, status);
    Activity();
  });
}

void VirtualTransport::EndSend(uint64_t send_id, const absl::Status& status) {
  const auto found = sends_.find(send_id);
  if (found == sends_.end()) return;
  auto done = std::move(found->second.done);
  sends_.erase(found);
  done(status);
}

void VirtualTransport::OnHeader(const VirtualNetwork::PacketRef& packet) {
  BeforeActivity();
  if (!packet->connection->open) return Activity();
  const uint64_t receive_id = next_receive_++;
  std::optional<transfer::ScatterList> place;
  if (listener_ != nullptr)
    place =
        listener_->OnFrame(PeerOf(packet->connection), packet->frame, packet->bytes, receive_id);
  if (packet->bytes == 0 || !place.has_value()) {
    packet->sender->PostSent(packet->send_id, absl::OkStatus());
    return Activity();
  }
  if (observer_ != nullptr) observer_->OnAdmitted(packet->frame, receive_id);
  receives_[receive_id] = {packet, *std::move(place), process_.Now()};
  if (!network_.options_.rendezvous) return Land(receive_id);
  process_.Post(network_.WireTime(packet->from, packet->to, packet->bytes),
                [this, receive_id] { Land(receive_id); });
  Activity();
}

void VirtualTransport::Land(uint64_t receive_id) {
  BeforeActivity();
  const auto found = receives_.find(receive_id);
  if (found == receives_.end()) return;  // the connection ended before
  const VirtualNetwork::PacketRef packet = found->second.packet;
  if (!packet->connection->open) return;  // OnLost will end the receive
  // This transport may be gone by then; its process is not.
  const auto again = [this, receive_id, process = &process_, life = process_.life()] {
    if (life == process->life())
      process->Post(absl::ZeroDuration(), [this, receive_id] { Land(receive_id); });
  };
  if (network_.MeetPartition(packet, again)) return;
  if (observer_ != nullptr) observer_->OnLanding(receive_id, !packet->corrupt);
  std::string bytes = packet->copy;
  if (!packet->copied) {
    for (const absl::Span<const std::byte> piece : packet->memory)
      bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  }
  if (packet->corrupt) bytes[network_.world_.random().Below(bytes.size())] ^= 0x20;
  const char* source = bytes.data();
  for (const absl::Span<std::byte> piece : found->second.place) {
    std::memcpy(piece.data(), source, piece.size());
    source += piece.size();
  }
  packet->sender->PostSent(packet->send_id, absl::OkStatus());
  EndReceive(receive_id, absl::OkStatus());
  Activity();
}

void VirtualTransport::EndReceive(uint64_t receive_id, const absl::Status& status) {
  const auto found = receives_.find(receive_id);
  const absl::Time began = found->second.began;
  if (!status.ok() && network_.world_.Chance(2)) {
    // Only half of the payload has landed, so its destination may hold any bytes.
    for (const absl::Span<std::byte> piece : found->second.place) {
      if (observer_ != nullptr) observer_->OnLanding(receive_id, false);
      std::memset(piece.data(), 0x5a, piece.size() / 2);
    }
  }
  receives_.erase(found);
  if (observer_ != nullptr) observer_->OnReceiveEnded(receive_id);
  if (listener_ != nullptr)
    listener_->OnPayload(receive_id, status, {.began = began, .landed = process_.Now()});
}

}  // namespace tandem::sim
