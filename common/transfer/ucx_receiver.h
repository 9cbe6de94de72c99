// Receives frames through UCX: asks the listener where a payload may land, and lands it there. A
// small payload comes together with its header ("eager") and is copied at once. A large one stays
// with its sender until this side asks UCX for it ("rendezvous"), and lands in pieces while UCX is
// progressed.
//
// Invariants: the listener hears of each payload that it gave a place exactly once; a receive's
// list of pieces lives until UCX has called back.
// Thread safety: none; one thread at a time. Owner: UcxTransport.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/ucx_local.h"
#include "common/transfer/ucx_message.h"

namespace tandem::transfer {

class UcxReceiver;

// A rendezvous payload on its way into the place that the listener gave it.
struct UcxReceive {
  UcxReceiver* receiver = nullptr;  // for UCX's callback
  UcxPeer* peer = nullptr;
  bool over_shm = false;
  uint64_t id = 0;  // as the listener knows it
  absl::Time began;
  std::vector<ucp_dt_iov_t> pieces;
  size_t bytes = 0;  // of all pieces
};

class UcxReceiver {
 public:
  explicit UcxReceiver(const UcxLocal& local) : local_(local) {}

  void SetListener(KvTransport::Listener* listener) { listener_ = listener; }
  // A call of Progress begins: payloads that come with their headers count as begun now.
  void BeginRound(absl::Time now) { round_began_ = now; }
  // A frame from `peer`; `frame_bytes` is the body of `message`. kInvalidArgument, without a word
  // to the listener, when the frame does not parse.
  absl::Status OnFrame(UcxPeer& peer, absl::string_view frame_bytes, const UcxMessage& message);
  // Ends a receive that UCX does not hold, or never will call back for.
  void Finish(std::unique_ptr<UcxReceive> receive, const absl::Status& status);

 private:
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* user_data);
  void LandEager(uint64_t receive_id, const ScatterList& place, const UcxMessage& message);
  void LandRendezvous(UcxPeer& peer, uint64_t receive_id, const ScatterList& place,
                      const UcxMessage& message);
  void Start(std::unique_ptr<UcxReceive> receive, const UcxMessage& message);

  const UcxLocal& local_;
  KvTransport::Listener* listener_ = nullptr;
  uint64_t next_receive_ = 1;
  absl::Time round_began_ = absl::InfinitePast();
};

}  // namespace tandem::transfer
