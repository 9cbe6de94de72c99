// The inside of the UCX transport: its peers and the requests in UCX's hands.
//
// Greetings. A transport knows its peers by `origin`, a number each draws at its start and puts
// before every frame. Who connects sends HELLO first: its address and the connection's number; the
// other side makes an endpoint of its own to that address, with an error handler, so that both
// sides notice a loss. BYE ends a connection on purpose. A HELLO with a new number from a known
// origin means that the peer gave the old connection up.
//
// Invariants: UCX calls back only inside ucp_worker_progress; a request's memory lives until its
// callback; OnPeerLost comes after all of the peer's sends and receives have completed.
// Thread safety: none; one thread at a time but for Wake().
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/runtime/random.h"
#include "common/transfer/ucx_transport.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

class UcxTransport final : public KvTransport {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  UcxTransport(const UcxOptions& options, std::unique_ptr<UcxWorker> worker);
  // Registers the message handlers. Call once.
  absl::Status Start();
  ~UcxTransport() override;

  void SetListener(Listener* listener) override { listener_ = listener; }
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override;
  void Disconnect(PeerId peer) override;
  void Send(PeerId peer, const v1::KvFrame& frame, GatherList payload, Done done) override;
  std::string TransportName(PeerId peer) const override;
  bool Progress() override;
  void Wait(absl::Duration timeout) override;
  void Wake() override { worker_->Wake(); }

 private:
  enum class MessageKind : uint8_t { kHello = 1, kBye = 2, kFrame = 3 };

  struct Peer {
    UcxTransport* transport = nullptr;  // for UCX's error callback
    PeerId id;
    UcxAddress address;
    uint64_t connection = 0;         // of the greeting sent by this side, 0 when none was
    uint64_t remote_connection = 0;  // of the greeting last seen from the other side
    ucp_ep_h endpoint = nullptr;
    ucs_status_ptr_t closing = nullptr;  // UCX's close request
    bool closed = false;                 // the close request completed
    bool lost = false;                   // no longer usable; ends when nothing is in flight
    bool silent = false;                 // ended by Disconnect: no OnPeerLost
    absl::Status why;
    int64_t sends_in_flight = 0;
    int64_t receives_in_flight = 0;
    mutable std::string transport_name = "unknown";
  };
  struct SendRequest {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;  // null when it was gone already
    std::string header;
    std::vector<ucp_dt_iov_t> pieces;
    Done done;
    absl::Status status;
  };
  struct ReceiveRequest {
    UcxTransport* transport = nullptr;
    Peer* peer = nullptr;
    uint64_t id = 0;
    std::vector<ucp_dt_iov_t> pieces;
    size_t bytes = 0;
  };

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t data_bytes, const ucp_am_recv_param_t* param);
  static void OnSendDone(void* request, ucs_status_t status, void* user_data);
  static void OnReceiveDone(void* request, ucs_status_t status, size_t bytes, void* user_data);
  static void OnEndpointError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  // ucx_transport.cc: peers and sending
  Peer* AddPeer(const UcxAddress& address);
  absl::Status OpenEndpoint(Peer& peer);
  void Greet(Peer& peer, MessageKind kind);
  void StartSend(std::unique_ptr<SendRequest> request);
  void Lose(Peer& peer, const absl::Status& why, bool silent);
  // Moves endings on: opens endpoints for greetings seen, closes lost ones, runs completions.
  bool Reap();
  bool RunCompletions();
  void LogTransport(const Peer& peer) const;

  // ucx_receive.cc
  std::string MessageHeader(MessageKind kind, uint64_t connection, absl::string_view rest) const;
  ucs_status_t Receive(absl::string_view header, void* data, size_t data_bytes,
                       const ucp_am_recv_param_t* param);
  void OnHello(uint64_t origin, uint64_t connection, absl::string_view address);
  ucs_status_t ReceiveFrame(Peer& peer, absl::string_view frame_bytes, void* data,
                            size_t data_bytes, const ucp_am_recv_param_t* param);
  void LandEager(uint64_t receive_id, const ScatterList& place, const void* data);
  void LandRendezvous(Peer& peer, uint64_t receive_id, const ScatterList& place, void* data);
  void DropMessage(absl::string_view why);

  const UcxOptions options_;
  const std::unique_ptr<UcxWorker> worker_;
  const std::unique_ptr<Random> random_;
  const uint64_t origin_;
  std::string address_;
  Listener* listener_ = nullptr;
  uint64_t next_peer_ = 1;
  uint64_t next_receive_ = 1;
  int64_t dropped_messages_ = 0;
  // All peers whose end is not complete, and those of them that frames may come from.
  absl::btree_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<uint64_t, Peer*> by_origin_;
  std::vector<std::unique_ptr<SendRequest>> finished_sends_;
  bool peers_changed_ = false;
  bool waited_ = false;  // since the last Progress
};

}  // namespace tandem::transfer
