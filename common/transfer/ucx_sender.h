// Sends messages through UCX and runs their completions. A send belongs to this process from
// creation to Start, to UCX until UCX calls back, and to the queue of finished sends until
// RunCompletions calls its `done`. Completions never run inside a UCX callback, because what they
// do may call UCX again.
//
// Invariants: a send's header and list of pieces live until UCX has called back; every send is
// completed exactly once.
// Thread safety: none; one thread at a time. Owner: UcxTransport.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace tandem::transfer {

struct UcxPeer;
class UcxSender;

// One message on its way out.
struct UcxSend {
  UcxSender* sender = nullptr;  // for UCX's callback; set by Start
  UcxPeer* peer = nullptr;      // null: the peer was gone before the send started
  bool over_shm = false;
  std::string header;                // UcxHeader::Serialize
  std::vector<ucp_dt_iov_t> pieces;  // of the payload, all in `memory`; none: no payload
  ucs_memory_type_t memory = UCS_MEMORY_TYPE_HOST;
  absl::AnyInvocable<void(const absl::Status&)> done;  // may be null
  absl::Status status;                                 // once finished
};

class UcxSender {
 public:
  // Gives `send` to UCX, over the shared memory or the control endpoint of its peer.
  // REQUIRES: send->peer is not null, and the endpoint is open.
  void Start(std::unique_ptr<UcxSend> send, bool over_shm);
  // Ends a send that UCX does not hold, or never will call back for; `done` runs later.
  void Finish(std::unique_ptr<UcxSend> send, const absl::Status& status);

  bool has_finished() const { return !finished_.empty(); }
  // Runs the completions of all finished sends; says whether there were any.
  bool RunCompletions();

 private:
  static void OnSent(void* request, ucs_status_t status, void* user_data);

  // Bound: the sends in flight, emptied by each RunCompletions.
  std::vector<std::unique_ptr<UcxSend>> finished_;
};

}  // namespace tandem::transfer
