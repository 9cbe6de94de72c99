// The peers of a UCX transport, from greeting to end.
//
// Endpoints. Every peer has a control endpoint, over TCP. Peers on the same host add an endpoint
// over shared memory, with a worker on each side that only this one peer writes to. One worker for
// all peers would not do: the peers would write into one queue, where a peer that is killed between
// taking a queue entry and filling it leaves an entry that never fills, and no message behind it is
// ever seen. With a worker for each peer, the queue is destroyed together with the peer.
//
// Greetings. A transport knows its peers by their `origin`. The side that connects sends HELLO
// first: its address and the connection's number. The other side opens an endpoint of its own to
// that address, with an error handler, so that both sides notice a loss. BYE ends a connection on
// purpose. A HELLO with a new number from a known origin means that the peer gave the old
// connection up. The two sides set up shared memory like this:
//
//   A                                          B
//   HELLO, with A's shm address  ──control──▶  opens its shm endpoint to A
//   opens its endpoint to B      ◀──control──  WELCOME, with B's shm address; or without one: then
//                                              frames go over TCP
//   READY  ────────────────────────shm──────▶  frames may go both ways (READY over control: A could
//                                              not open its endpoint, frames go over TCP)
//
// Frames that the application sends before that wait in the peer. When both sides send HELLO at the
// same time, the HELLO of the smaller origin counts.
//
// Endings. A lost peer takes part in nothing any more; TakeEnded closes its endpoints and returns
// it once no request of it is in flight. UCX may need several rounds of progress for that.
//
// Invariants: at most one peer of each origin is not lost; a peer's id is never reused.
// Thread safety: none; one thread at a time. Owner: UcxTransport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/ucx_local.h"
#include "common/transfer/ucx_message.h"
#include "common/transfer/ucx_peer.h"
#include "common/transfer/ucx_receiver.h"
#include "common/transfer/ucx_sender.h"

namespace tandem::transfer {

class UcxPeerTable {
 public:
  // `sink` takes what peers send through shared memory. All four outlive the table.
  UcxPeerTable(UcxLocal& local, UcxSender& sender, UcxReceiver& receiver, UcxMessageSink& sink)
      : local_(local), sender_(sender), receiver_(receiver), sink_(sink) {}

  // As KvTransport's.
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer);
  void Disconnect(PeerId peer);

  // Any peer whose end is not complete, lost or not; else null.
  UcxPeer* Find(PeerId peer) const;
  // null when there is none, or it is lost.
  UcxPeer* FindByOrigin(uint64_t origin) const;

  // Messages of the greeting. kInvalidArgument or kResourceExhausted say why one was dropped.
  absl::Status OnHello(const UcxHeader& hello);
  // WELCOME, READY or BYE. `over_shm`: how it came.
  absl::Status OnGreeting(UcxPeer& peer, const UcxHeader& greeting, bool over_shm);

  // Peers with shared memory, whose workers are to be progressed. Greetings append to it; only
  // TakeEnded and DestroyShmEndpoints remove from it.
  const std::vector<UcxPeer*>& shm_peers() const { return shm_peers_; }

  // Whether a lost peer has not ended yet.
  bool ending() const { return lost_count_ > 0; }
  // Moves endings on. Returns the peers that have ended.
  std::vector<std::unique_ptr<UcxPeer>> TakeEnded();
  // All peers are lost, without a word to the listener.
  void LoseAll(const absl::Status& why);
  // Ends what is in flight through shared memory, whatever UCX has called back.
  void DestroyShmEndpoints();
  size_t size() const { return peers_.size(); }

 private:
  static ucs_status_t OnShmMessage(void* peer, const void* header, size_t header_bytes, void* data,
                                   size_t data_bytes, const ucp_am_recv_param_t* param);
  static void OnEndpointError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  UcxPeer& Add(const UcxAddress& address);
  absl::Status AddShmWorker(UcxPeer& peer);
  absl::Status OpenShmEndpoint(UcxPeer& peer, const std::string& shm_address);
  // Opens the control endpoint to a new peer, and the worker of its shared memory where both sides
  // agree to it.
  absl::Status OpenEndpoints(UcxPeer& peer);
  void Greet(UcxPeer& peer, UcxMessageKind kind, bool offer_shm = false);
  // Answers a HELLO.
  void Accept(UcxPeer& peer, const std::string& shm_address);
  absl::Status OnWelcome(UcxPeer& peer, const UcxHeader& welcome);
  // The connection is open: sends what waited.
  void OnReady(UcxPeer& peer, bool over_shm);
  void Lose(UcxPeer& peer, const absl::Status& why, bool silent);
  // Whether nothing of the shared memory is in flight any more; ends what UCX does not end in time.
  bool EndShmEndpoint(UcxPeer& peer);
  void DestroyShmEndpoint(UcxPeer& peer);

  UcxLocal& local_;
  UcxSender& sender_;
  UcxReceiver& receiver_;
  UcxMessageSink& sink_;
  uint64_t next_peer_ = 1;
  int64_t lost_count_ = 0;
  // All peers whose end is not complete.
  // Bound: kPeersMax (4,096).
  absl::btree_map<PeerId, std::unique_ptr<UcxPeer>> peers_;
  // Those of them that are not lost.
  // Bound: kPeersMax (4,096).
  absl::flat_hash_map<uint64_t, UcxPeer*> by_origin_;
  // Bound: kShmEndpointsMax (64), others use the control worker.
  std::vector<UcxPeer*> shm_peers_;
};

}  // namespace tandem::transfer
