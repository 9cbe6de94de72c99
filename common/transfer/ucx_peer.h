// One peer of the UCX transport: its two endpoints, the state of its greeting, and what is in
// flight to and from it. UcxPeerTable changes its state; UcxSender and UcxReceiver count their
// requests here. Invariants: a peer is destroyed only when no request of it is in flight; messages
// over shared memory come from this one peer only.
// Thread safety: none; one thread at a time. Owner: UcxPeerTable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/ucx_address.h"
#include "common/transfer/ucx_sender.h"
#include "common/transfer/ucx_worker.h"

namespace tandem::transfer {

class UcxPeerTable;
struct UcxReceive;

// Both directions of shared memory with one peer: the worker that only this peer writes to, and
// the endpoint to the peer's worker for this process.
struct UcxShmEndpoint {
  std::unique_ptr<UcxWorker> worker;
  UcxEndpoint endpoint;
  // Requests that UCX holds. When UCX does not end them in time, UcxPeerTable does.
  // Bound: the senders' bytes and control frames in flight.
  absl::flat_hash_set<UcxSend*> sends;
  // Bound: the payloads of open leases.
  absl::flat_hash_set<UcxReceive*> receives;
};

struct UcxPeer {
  // kGreeted: this side sent HELLO and waits for the WELCOME. kWelcomed: this side sent WELCOME and
  // waits for READY. kOpen: frames may be sent.
  enum class State { kGreeted, kWelcomed, kOpen };

  UcxPeerTable* table = nullptr;  // for UCX's callbacks
  PeerId id;
  UcxAddress address;
  std::string node;  // for log lines: as this side's caller named it; empty if the other side began
  uint64_t connection = 0;         // of the greeting that this side sent; 0: it sent none
  uint64_t remote_connection = 0;  // of the last greeting that the other side sent; 0: none
  State state = State::kOpen;
  UcxEndpoint control;
  std::unique_ptr<UcxShmEndpoint> shm;  // null: the two processes share no memory
  bool over_shm = false;                // once open: frames go through `shm`
  // Frames that the application sent before the connection was open.
  std::vector<std::unique_ptr<UcxSend>> waiting;
  bool lost = false;  // not usable any more; destroyed when nothing is in flight
  absl::Time lost_at;
  bool silent = false;  // ended by this side: OnPeerLost is not called
  absl::Status why;     // it was lost
  int64_t sends_in_flight = 0;
  int64_t receives_in_flight = 0;
};

}  // namespace tandem::transfer
