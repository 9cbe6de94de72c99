// The KV plane's network in virtual time: connections between the transports of simulated
// processes, with loss, duplication, corruption, delay (and so reordering), partitions in one or
// both directions and slow links. A payload travels apart from its header and out of its sender's
// memory (rendezvous) or with it (eager), so receives are in flight while other things happen.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "common/transfer/kv_transport.h"
#include "sim/world/process.h"
#include "sim/world/world.h"

namespace tandem::sim {

// Reports to a checker where payloads land.
class LandingObserver {
 public:
  virtual ~LandingObserver() = default;
  virtual void OnAdmitted(const v1::KvFrame& frame, uint64_t receive_id) = 0;
  // `intact`: the bytes are those that were sent.
  virtual void OnLanding(uint64_t receive_id, bool intact) = 0;
  virtual void OnReceiveEnded(uint64_t receive_id) = 0;
};

struct FrameFaults {
  uint64_t lose_one_in = 0;  // 0 = never
  uint64_t duplicate_one_in = 0;
  uint64_t corrupt_one_in = 0;
  absl::Duration delay_max;  // in addition to the usual delay
};

struct NetworkOptions {
  int processes = 0;
  absl::Duration delay_max = absl::Microseconds(200);
  double bytes_per_second = 1e8;
  bool rendezvous = true;
  bool hold_when_blocked = false;  // else a partition loses packets and ends their connections
};

class VirtualTransport;

class VirtualNetwork {
 public:
  VirtualNetwork(World& world, const NetworkOptions& options);

  // A transport of `process`; the caller owns it, it ends with the process's life.
  std::unique_ptr<VirtualTransport> NewTransport(Process& process, const std::string& address);

  // Directions between processes, by their ids. Calls nest.
  void Block(int from, int to) { ++At(blocked_, from, to); }
  void Unblock(int from, int to) { --At(blocked_, from, to); }
  bool Blocked(int from, int to) const { return blocked_[from * options_.processes + to] > 0; }
  // Whether any direction is.
  bool AnyBlocked() const {
    return std::any_of(blocked_.begin(), blocked_.end(), [](int count) { return count > 0; });
  }
  void SetRate(int from, int to, double bytes_per_second) {
    At(rates_, from, to) = bytes_per_second;
  }
  void ResetRate(int from, int to) { SetRate(from, to, options_.bytes_per_second); }
  FrameFaults& faults() { return faults_; }
  int64_t frames_sent() const { return frames_sent_; }

 private:
  friend class VirtualTransport;
  // Both ends of a connection; an end is null once it closed or died.
  struct Connection {
    VirtualTransport* ends[2] = {nullptr, nullptr};
    int processes[2] = {-1, -1};
    bool open = true;
    VirtualTransport* Other(const VirtualTransport* end) const {
      return ends[0] == end ? ends[1] : ends[0];
    }
  };
  struct Packet {
    std::shared_ptr<Connection> connection;  // shared by packets in flight and both ends
    VirtualTransport* sender = nullptr;      // valid while the connection is open
    VirtualTransport* receiver = nullptr;    // likewise
    int from = -1, to = -1;
    uint64_t send_id = 0;  // 0 = no send waits for its completion
    v1::KvFrame frame;
    size_t bytes = 0;
    transfer::GatherList memory;  // the sender's, unless copied
    std::string copy;
    bool copied = false;
    bool corrupt = false;
  };
  using PacketRef = std::shared_ptr<Packet>;  // a packet and its duplicate share nothing else

  template <typename T>
  T& At(std::vector<T>& matrix, int from, int to) {
    return matrix[from * options_.processes + to];
  }
  absl::Duration WireTime(int from, int to, size_t bytes) const;
  void Transmit(PacketRef packet);
  void Arrive(const PacketRef& packet);
  // Handles a packet whose path is blocked; false when it is not blocked.
  bool MeetPartition(const PacketRef& packet, absl::AnyInvocable<void()> again);
  // The connection ends; both ends but `closer` are told.
  void Close(const std::shared_ptr<Connection>& connection, const VirtualTransport* closer);
  void TellLost(const std::shared_ptr<Connection>& connection, VirtualTransport* end, int from);

  World& world_;
  const NetworkOptions options_;
  FrameFaults faults_;
  std::vector<int> blocked_;
  std::vector<double> rates_;
  std::map<std::string, VirtualTransport*> transports_;
  int64_t frames_sent_ = 0;
};

class VirtualTransport final : public transfer::KvTransport {
 public:
  VirtualTransport(VirtualNetwork& network, Process& process, std::string address);
  ~VirtualTransport() override;

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }
  absl::StatusOr<transfer::PeerId> Connect(const transfer::PeerAddress& peer) override;
  void Disconnect(transfer::PeerId peer) override;
  void Send(transfer::PeerId peer, const v1::KvFrame& frame, transfer::GatherList payload,
            absl::AnyInvocable<void(const absl::Status&)> done) override;
  std::string TransportName(transfer::PeerId) const override { return "virtual"; }
  // Events of the World do all the work.
  bool Progress() override { return false; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  // Called before anything reaches the listener or ends a send, so that the owner knows the time.
  void SetBeforeActivity(absl::AnyInvocable<void()> before_activity) {
    before_activity_ = std::move(before_activity);
  }
  // Called after anything reached the listener, so that the owner can act on it.
  void SetOnActivity(absl::AnyInvocable<void()> on_activity) {
    on_activity_ = std::move(on_activity);
  }
  void SetObserver(LandingObserver* observer) { observer_ = observer; }

 private:
  friend class VirtualNetwork;
  using ConnectionRef = std::shared_ptr<VirtualNetwork::Connection>;
  struct Receive {
    VirtualNetwork::PacketRef packet;
    transfer::ScatterList place;
    absl::Time began;
  };
  struct SendInFlight {
    ConnectionRef connection;
    absl::AnyInvocable<void(const absl::Status&)> done;
  };

  transfer::PeerId PeerOf(const ConnectionRef& connection);
  void OnHeader(const VirtualNetwork::PacketRef& packet);
  void Land(uint64_t receive_id);
  void EndReceive(uint64_t receive_id, const absl::Status& status);
  // At the sender, later: its send is over.
  void PostSent(uint64_t send_id, const absl::Status& status);
  void EndSend(uint64_t send_id, const absl::Status& status);
  void OnLost(const ConnectionRef& connection);
  void EndTraffic(const ConnectionRef& connection, const absl::Status& status);
  void BeforeActivity() {
    if (before_activity_) before_activity_();
  }
  void Activity() {
    if (on_activity_) on_activity_();
  }

  VirtualNetwork& network_;
  Process& process_;
  const std::string address_;
  Listener* listener_ = nullptr;
  LandingObserver* observer_ = nullptr;
  absl::AnyInvocable<void()> before_activity_, on_activity_;
  std::map<transfer::PeerId, ConnectionRef> connections_;
  std::map<std::string, transfer::PeerId> by_address_;
  std::map<uint64_t, Receive> receives_;
  std::map<uint64_t, SendInFlight> sends_;
  uint64_t next_peer_ = 1, next_receive_ = 1, next_send_ = 1;
};

}  // namespace tandem::sim
