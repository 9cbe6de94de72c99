// A network of KvTransports in virtual time, with faults: delay (and so reordering), loss,
// duplication, corruption. Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/transfer/kv_transport.h"
#include "sim/world.h"

namespace tandem::sim {

struct NetworkFaults {
  absl::Duration delay_max = absl::Microseconds(200);  // uniform, each frame on its own
  uint64_t drop_one_in = 0;                            // 0 = never
  uint64_t duplicate_one_in = 0;
  uint64_t corrupt_one_in = 0;  // one payload byte flipped
  double bytes_per_second = 5e9;
};

class VirtualTransport;

class VirtualNetwork {
 public:
  VirtualNetwork(World& world, const NetworkFaults& faults) : world_(world), faults_(faults) {}

  // A transport reachable under `address`; the caller owns it, the network and the world outlive
  // it.
  std::unique_ptr<VirtualTransport> NewTransport(const std::string& address);
  NetworkFaults& faults() { return faults_; }
  int64_t frames_sent() const { return frames_sent_; }
  int64_t frames_dropped() const { return frames_dropped_; }

 private:
  friend class VirtualTransport;
  struct Packet {
    std::string from, to;
    v1::KvFrame frame;
    std::string payload;
  };
  absl::Duration WireTime(const Packet& packet) const;
  void Transmit(Packet packet, absl::AnyInvocable<void(const absl::Status&)> done);

  World& world_;
  NetworkFaults faults_;
  std::map<std::string, VirtualTransport*> transports_;
  int64_t frames_sent_ = 0;
  int64_t frames_dropped_ = 0;
};

class VirtualTransport final : public transfer::KvTransport {
 public:
  VirtualTransport(VirtualNetwork& network, std::string address);
  ~VirtualTransport() override;

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }
  absl::StatusOr<transfer::PeerId> Connect(const transfer::PeerAddress& peer) override;
  void Disconnect(transfer::PeerId peer) override;
  void Send(transfer::PeerId peer, const v1::KvFrame& frame, transfer::GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override;
  std::string TransportName(transfer::PeerId) const override { return "virtual"; }
  // Events of the world move everything on.
  bool Progress() override { return false; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  // Called after anything reached the listener, so that the owner can act on it.
  void SetOnActivity(absl::AnyInvocable<void()> on_activity) {
    on_activity_ = std::move(on_activity);
  }

 private:
  friend class VirtualNetwork;
  void Deliver(const VirtualNetwork::Packet& packet);
  transfer::PeerId PeerOf(const std::string& address);

  VirtualNetwork& network_;
  const std::string address_;
  Listener* listener_ = nullptr;
  absl::AnyInvocable<void()> on_activity_;
  std::map<std::string, transfer::PeerId> peers_;
  std::map<transfer::PeerId, std::string> addresses_;
  uint64_t next_peer_ = 1;
  uint64_t next_receive_ = 1;
};

}  // namespace tandem::sim
