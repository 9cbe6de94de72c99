// A virtual network of KvTransports for tests of the KV transfer. It runs on one thread, has steps
// instead of time, and draws every choice from one seed. It delays (and so reorders), drops,
// duplicates and damages frames; payloads arrive some steps after their headers; connections break.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/random.h"
#include "common/transfer/kv_transport.h"

namespace tandem::testing {

struct Faults {
  double drop = 0, duplicate = 0, damage_payload = 0, damage_header = 0;
  int delay_steps_max = 0;  // 0: in order
};

class FaultyNetwork {
 public:
  class Transport;
  FaultyNetwork(uint64_t seed, const Faults& faults)
      : faults_(faults), random_(NewSeededRandom(seed)) {}

  std::unique_ptr<Transport> NewTransport();
  void set_faults(const Faults& faults) { faults_ = faults; }
  // Advances one step: delivers the headers and the payloads that are due.
  void Step();
  // Ends the connection between two transports, and tells both.
  void Break(Transport& a, Transport& b);
  bool idle() const { return flights_.empty() && landings_.empty(); }

 private:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;
  struct Flight {
    int64_t due = 0;
    Transport* from = nullptr;
    Transport* to = nullptr;
    v1::KvFrame frame;
    transfer::GatherList payload;
    Done done;  // null for the copy of a duplicated frame
    std::vector<std::byte> copy;
  };
  struct Landing {
    int64_t began = 0, due = 0;
    Transport* from = nullptr;
    Transport* to = nullptr;
    uint64_t receive_id = 0;
    std::vector<std::byte> bytes;
    transfer::ScatterList place;
  };

  bool Chance(double probability) {
    return static_cast<double>(random_->Below(1'000'000)) < probability * 1e6;
  }
  int64_t Delay() {
    return step_ + 1 +
           (faults_.delay_steps_max > 0
                ? static_cast<int64_t>(random_->Below(faults_.delay_steps_max))
                : 0);
  }
  // A step counts as a millisecond where a time is needed.
  transfer::ReceiveInterval Interval(const Landing& landing) const {
    return {.began = absl::UnixEpoch() + absl::Milliseconds(landing.began),
            .landed = absl::UnixEpoch() + absl::Milliseconds(step_)};
  }
  void Arrive(Flight flight);
  void Damage(v1::KvFrame& frame);
  void Land(Landing landing);

  Faults faults_;
  std::unique_ptr<Random> random_;
  int64_t step_ = 0;
  uint64_t next_receive_ = 1;
  std::vector<Transport*> transports_;
  std::vector<Flight> flights_;
  std::vector<Landing> landings_;
};

class FaultyNetwork::Transport final : public transfer::KvTransport {
 public:
  Transport(FaultyNetwork& network, std::string address)
      : network_(network), address_(std::move(address)) {}

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }
  absl::StatusOr<transfer::PeerId> Connect(const transfer::PeerAddress& peer) override {
    for (Transport* other : network_.transports_) {
      if (other->address_ == peer.transport_address) return PeerOf(other);
    }
    return absl::UnavailableError("no such address");
  }
  void Disconnect(transfer::PeerId peer) override {
    Transport* other = Other(peer);
    if (other == nullptr) return;
    peers_.erase(other);  // this side is not told
    network_.Break(*this, *other);
  }
  void Send(transfer::PeerId peer, const v1::KvFrame& frame, transfer::GatherList payload,
            Done done) override {
    Transport* other = Other(peer);
    Flight flight;
    flight.due = network_.Delay();
    flight.from = this;
    flight.to = other;  // null: the peer is gone
    flight.frame = frame;
    flight.payload = std::move(payload);
    flight.done = std::move(done);
    network_.flights_.push_back(std::move(flight));
  }
  std::string TransportName(transfer::PeerId) const override { return "virtual"; }
  // Payloads lie there, and this network reaches it. Outlives the transport.
  void set_payloads(transfer::PayloadStore* payloads) { payloads_ = payloads; }
  transfer::PayloadStore* payloads() override { return payloads_; }
  bool Progress() override { return false; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  // The id of the connection with `other`, made if there is none.
  transfer::PeerId PeerOf(Transport* other) {
    const auto it = peers_.find(other);
    if (it != peers_.end()) return it->second;
    return peers_[other] = transfer::PeerId(next_peer_++);
  }

 private:
  friend class FaultyNetwork;
  Transport* Other(transfer::PeerId peer) const {
    for (const auto& [other, id] : peers_) {
      if (id == peer) return other;
    }
    return nullptr;
  }
  void Lose(Transport* other) {
    const auto it = peers_.find(other);
    if (it == peers_.end()) return;
    const transfer::PeerId id = it->second;
    peers_.erase(it);
    if (listener_ != nullptr) listener_->OnPeerLost(id, absl::UnavailableError("broken"));
  }

  FaultyNetwork& network_;
  const std::string address_;
  Listener* listener_ = nullptr;
  transfer::PayloadStore* payloads_ = nullptr;
  uint64_t next_peer_ = 1;
  std::map<Transport*, transfer::PeerId> peers_;
};

inline std::unique_ptr<FaultyNetwork::Transport> FaultyNetwork::NewTransport() {
  auto transport = std::make_unique<Transport>(*this, absl::StrCat("virtual:", transports_.size()));
  transports_.push_back(transport.get());
  return transport;
}

inline void FaultyNetwork::Step() {
  ++step_;
  std::vector<Flight> arriving;
  for (size_t i = 0; i < flights_.size();) {
    if (flights_[i].due > step_) {
      ++i;
      continue;
    }
    arriving.push_back(std::move(flights_[i]));
    flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Flight& flight : arriving) Arrive(std::move(flight));
  std::vector<Landing> landing;
  for (size_t i = 0; i < landings_.size();) {
    if (landings_[i].due > step_) {
      ++i;
      continue;
    }
    landing.push_back(std::move(landings_[i]));
    landings_.erase(landings_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Landing& one : landing) Land(std::move(one));
}

inline void FaultyNetwork::Damage(v1::KvFrame& frame) {
  if (frame.has_sealed()) {
    v1::KvSealed& sealed = *frame.mutable_sealed();
    std::string& bytes = sealed.frame().empty() ? *sealed.mutable_tag() : *sealed.mutable_frame();
    bytes[random_->Below(bytes.size())] ^= 1;
  } else if (frame.has_handshake()) {
    std::string& nonce = *frame.mutable_handshake()->mutable_nonce();
    nonce[random_->Below(nonce.size())] ^= 1;
  } else {
    frame.set_lease_id(frame.lease_id() ^ 1);
  }
}

inline void FaultyNetwork::Arrive(Flight flight) {
  if (flight.to == nullptr) {
    if (flight.done) flight.done(absl::UnavailableError("the peer is gone"));
    return;
  }
  // The payload is read here, as late as the sender allows.
  if (flight.copy.empty()) {
    for (const absl::Span<const std::byte> piece : flight.payload) {
      flight.copy.insert(flight.copy.end(), piece.begin(), piece.end());
    }
  }
  if (flight.done) {
    if (Chance(faults_.duplicate)) {
      Flight again;
      again.due = Delay();
      again.from = flight.from;
      again.to = flight.to;
      again.frame = flight.frame;
      again.copy = flight.copy;
      flights_.push_back(std::move(again));
    }
    flight.done(absl::OkStatus());
  }
  if (Chance(faults_.drop) || flight.to->listener_ == nullptr) return;
  if (Chance(faults_.damage_header)) Damage(flight.frame);
  const size_t bytes = flight.copy.size();
  const uint64_t id = next_receive_++;
  std::optional<transfer::ScatterList> place =
      flight.to->listener_->OnFrame(flight.to->PeerOf(flight.from), flight.frame, bytes, id);
  if (bytes == 0 || !place.has_value()) return;
  if (Chance(faults_.damage_payload)) {
    flight.copy[random_->Below(bytes)] ^= std::byte{0x40};
  }
  landings_.push_back({.began = step_,
                       .due = Delay(),
                       .from = flight.from,
                       .to = flight.to,
                       .receive_id = id,
                       .bytes = std::move(flight.copy),
                       .place = std::move(*place)});
}

inline void FaultyNetwork::Land(Landing landing) {
  size_t offset = 0;
  for (const absl::Span<std::byte> piece : landing.place) {
    TANDEM_CHECK(offset + piece.size() <= landing.bytes.size());
    std::memcpy(piece.data(), landing.bytes.data() + offset, piece.size());
    offset += piece.size();
  }
  TANDEM_CHECK(offset == landing.bytes.size());
  landing.to->listener_->OnPayload(landing.receive_id, absl::OkStatus(), Interval(landing));
}

inline void FaultyNetwork::Break(Transport& a, Transport& b) {
  const auto between = [&](const auto& one) {
    return (one.from == &a && one.to == &b) || (one.from == &b && one.to == &a);
  };
  std::vector<Flight> ended;
  for (size_t i = 0; i < flights_.size();) {
    if (!between(flights_[i])) {
      ++i;
      continue;
    }
    ended.push_back(std::move(flights_[i]));
    flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i));
  }
  std::vector<Landing> torn;
  for (size_t i = 0; i < landings_.size();) {
    if (!between(landings_[i])) {
      ++i;
      continue;
    }
    torn.push_back(std::move(landings_[i]));
    landings_.erase(landings_.begin() + static_cast<ptrdiff_t>(i));
  }
  for (Flight& flight : ended) {
    if (flight.done) flight.done(absl::CancelledError("broken"));
  }
  for (Landing& landing : torn) {
    landing.to->listener_->OnPayload(landing.receive_id, absl::CancelledError("broken"),
                                     Interval(landing));
  }
  a.Lose(&b);
  b.Lose(&a);
}

}  // namespace tandem::testing
