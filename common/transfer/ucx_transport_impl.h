// The inside of the UCX transport: its peers and the requests in UCX's hands.
//
// Control and shm endpoints. The control worker speaks TCP. Frames between processes of one host go
// over a shm: a worker for shared memory on each side that only this one peer writes to. One worker
// for all would not do: its peers write into one queue, where a peer that is killed between taking
// a slot and filling it leaves a slot that never fills, and no message behind it is ever seen. A
// shm goes with its peer.
//
// Greetings. A transport knows its peers by `origin`, a number each draws at its start and puts
// before every message. Who connects sends HELLO first: its address and the connection's number;
// the other side makes an endpoint of its own to that address, with an error handler, so that both
// sides notice a loss. BYE ends a connection on purpose. A HELLO with a new number from a known
// origin means that the peer gave the old connection up. To set up a shm:
//
//   HELLO with A's shm ─control─▶  B opens a shm to it
//   A opens a shm too  ◀─control─ WELCOME with B's shm, or without: then frames go over TCP
//   READY ─────────────────shm──▶  frames may go both ways (over control: A fell back to TCP)
//
// Frames sent before that wait here. When both sides greet at once, the smaller origin's counts.
//
// Invariants: UCX calls back only inside ucp_worker_progress and ucp_worker_destroy; a request's
// memory lives until its callback; OnPeerLost comes after all of the peer's sends and receives have
// completed. Thread safety: none; one thread at a time but for Wake().
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/runtime/random.h"
#include "common/transfer/ucx_address.h"
#include "common/transfer/ucx_socket_guard.h"
#include "common/transfer/ucx_transport.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

class UcxTransport final : public KvTransport {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  explicit UcxTransport(const UcxOptions& options);
  // Finds the transports and begins to listen. Call once, before everything else.
  absl::Status Start();
  ~UcxTransport() override;

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) override;
  std::string TransportName(PeerId peer) const override;
  Refusals refusals() const override { return {guard_.refused(), dropped_messages_}; }
  bool Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override { wake_event_->Wake(); }
  PayloadStore* payloads() override { return options_.device.get(); }

 private:
  enum class MessageKind : uint8_t { kHello = 1, kBye = 2, kFrame = 3, kWelcome = 4, kReady = 5 };

  struct SendRequest;
  struct ReceiveRequest;
  struct ShmEndpoint {
    std::unique_ptr<UcxWorker> worker;
    UcxEndpoint endpoint;
    // In UCX's hands, to be ended here when UCX does not.
    // Bound: the senders' bytes and control frames in flight.
    absl::flat_hash_set<SendRequest*> sends;
    // Bound: the payloads of open leases.
    absl::flat_hash_set<ReceiveRequest*> receives;
  };
  struct Peer {
    // kGreeted: this side's HELLO offered a shm. kWelcomed: this side's WELCOME did.
    enum class State { kGreeted, kWelcomed, kOpen };

    UcxTransport* transport = nullptr;  // for UCX's callbacks
    PeerId id;
    UcxAddress address;
    uint64_t connection = 0;         // of the greeting sent by this side, 0 when none was
    uint64_t remote_connection = 0;  // of the greeting last seen from the other side
    State state = State::kOpen;
    UcxEndpoint control;
    std::unique_ptr<ShmEndpoint> shm;
    bool over_shm = false;                              // once open: frames go over the shm
    std::vector<std::unique_ptr<SendRequest>> waiting;  // until it is open
    bool lost = false;  // no longer usable; ends when nothing is in flight
    absl::Time lost_at;
    bool silent = false;  // ended by Disconnect: no OnPeerLost
    absl::Status why;
    int64_t sends_in_flight = 0;
    int64_t receives_in_flight = 0;
  };
  struct SendRequest {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;  // null when it was gone already
    bool over_shm = false;
    std::string header;
    std::vector<ucp_dt_iov_t> pieces;
    ucs_memory_type_t memory = UCS_MEMORY_TYPE_HOST;
    Done done;
    absl::Status status;
  };
  struct ReceiveRequest {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;
    bool over_shm = false;
    uint64_t id = 0;
    absl::Time began;
    std::vector<ucp_dt_iov_t> pieces;
    size_t bytes = 0;
  };
  // A message as UCX hands it over.
  struct Message {
    UcxWorker* worker = nullptr;
    Peer* lane_of = nullptr;  // null: it came over control
    absl::string_view header;
    void* data = nullptr;
    size_t data_bytes = 0;
    bool rendezvous = false;  // the payload is still with the sender
  };

  static ucs_status_t OnControlMessage(void* transport, const void* header, size_t header_bytes,
                                       void* data, size_t data_bytes,
                                       const ucp_am_recv_param_t* param);
  static ucs_status_t OnShmMessage(void* peer, const void* header, size_t header_bytes, void* data,
                                   size_t data_bytes, const ucp_am_recv_param_t* param);
  static void OnSendDone(void* request, ucs_status_t status, void* user_data);
  static void OnReceiveDone(void* request, ucs_status_t status, size_t bytes, void* user_data);
  static void OnEndpointError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  // ucx_connect.cc: greetings, shm endpoints and endings
  Peer* AddPeer(const UcxAddress& address);
  absl::Status AddShmEndpoint(Peer& peer);
  absl::Status OpenShmEndpoint(Peer& peer, const std::string& shm_address);
  bool SharesMemory(const UcxAddress& address) const;
  bool MayUseTcp(const UcxAddress& address) const;
  void Greet(Peer& peer, MessageKind kind, bool offer_shm = false);
  void OnHello(uint64_t origin, uint64_t connection, absl::string_view address);
  void Accept(Peer& peer, const std::string& shm_address);
  void OnWelcome(Peer& peer, uint64_t connection, absl::string_view address);
  void OnReady(Peer& peer, bool over_shm);
  void Lose(Peer& peer, const absl::Status& why, bool silent);
  // Whether nothing of the shm is in flight any more; ends what UCX does not end in time.
  bool EndShmEndpoint(Peer& peer);
  void DestroyShmEndpoint(Peer& peer);
  // Moves endings on: closes lost endpoints, runs completions, ends peers with nothing in flight.
  bool Reap();

  // ucx_transport.cc: sending and progress
  void StartSend(std::unique_ptr<SendRequest> request, bool over_shm);
  void FinishSend(std::unique_ptr<SendRequest> request, const absl::Status& status);
  bool RunCompletions();
  bool ProgressWorker(UcxWorker& worker, int idle_calls_max);

  // ucx_receive.cc
  std::string MessageHeader(MessageKind kind, uint64_t connection, absl::string_view rest) const;
  void Receive(const Message& message);
  void ReceiveGreeting(MessageKind kind, Peer& peer, const Message& message);
  void ReceiveFrame(Peer& peer, const Message& message);
  // Of a payload's pieces: one slot of the device, or host memory.
  ucs_memory_type_t MemoryOf(const std::byte* piece) const;
  void LandEager(uint64_t receive_id, const ScatterList& place, const Message& message);
  void LandRendezvous(Peer& peer, uint64_t receive_id, const ScatterList& place,
                      const Message& message);
  void FinishReceive(std::unique_ptr<ReceiveRequest> request, const absl::Status& status);
  void DropMessage(absl::string_view why);

  const UcxOptions options_;
  const std::unique_ptr<Random> random_;
  const uint64_t origin_;
  // Public calls run in its scope: any of them may make UCX connect.
  const UcxSocketGuard guard_;
  std::unique_ptr<WakeEvent> wake_event_;
  std::unique_ptr<UcxContext> tcp_context_;
  std::unique_ptr<UcxContext> shm_context_;  // null when shared memory is not wanted or not there
  std::unique_ptr<UcxWorker> control_;
  UcxAddress own_address_;
  std::string address_;
  size_t header_bytes_max_ = 0;  // of the transport that takes least
  Listener* listener_ = nullptr;
  uint64_t next_peer_ = 1;
  uint64_t next_receive_ = 1;
  int64_t dropped_messages_ = 0;
  absl::Time round_began_ = absl::InfinitePast();  // this call of Progress
  // All peers whose end is not complete, and those of them that messages may come from.
  // Bound: kPeersMax (4,096).
  absl::btree_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<uint64_t, Peer*> by_origin_;
  // Bound: kShmEndpointsMax (64), others use the shared worker.
  std::vector<Peer*> shm_peers_;  // peers that have a shm, whose worker is progressed
  // Bound: the sends in flight, emptied each round.
  std::vector<std::unique_ptr<SendRequest>> finished_sends_;
  bool peers_changed_ = false;
  bool waited_ = false;  // since the last Progress
};

}  // namespace tandem::transfer
