// What the receiving and the sending half of a KvTransferEndpoint share: options, arena, transport,
// the current time, counters, and the events that TakeEvents will return.
// Thread safety: none; the transfer thread. Owner: the endpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/transfer/block_range.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transfer.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/payload_store.h"

namespace tandem::transfer {

class KvTransferContext {
 public:
  KvTransferContext(const KvTransferOptions& options, kv::BlockArena& arena, KvTransport& transport)
      : options(options),
        arena(arena),
        transport(transport),
        auth(options.fleet_secret),
        arena_payloads(transport.payloads() == nullptr
                           ? NewArenaPayloads(options.format, arena,
                                              transport.authenticates_payloads()
                                                  ? PayloadChecks::kByTransport
                                                  : PayloadChecks::kByChecksum)
                           : nullptr),
        payloads(arena_payloads == nullptr ? *transport.payloads() : *arena_payloads) {}

  const KvTransferOptions options;
  kv::BlockArena& arena;
  KvTransport& transport;
  const FrameAuth auth;
  const std::unique_ptr<PayloadStore> arena_payloads;  // null: the transport's are used
  PayloadStore& payloads;
  absl::Time now = absl::InfinitePast();
  TransferCounters counters;
  std::vector<TransferEvent> events;

  int64_t layer_block_bytes() const { return arena.layout().layer_block_bytes; }
  // A header to `receiver` of `lease`, without kind and tag.
  v1::KvFrame Header(Incarnation receiver, LeaseId lease, Epoch epoch) const;
  // Signs and sends a frame without payload. When too many are in flight the frame is dropped, and
  // `done` not called; the protocol repeats what matters.
  void SendControl(PeerId peer, v1::KvFrame frame,
                   absl::AnyInvocable<void(const absl::Status&)> done = nullptr);
  // Tells `peer` that the lease's epoch is over here.
  void SendAbort(PeerId peer, v1::KvFrame header, absl::string_view reason, bool from_receiver);
  // Signs and sends a frame with payload, counting it.
  void SendData(PeerId peer, v1::KvFrame frame, GatherList payload,
                absl::AnyInvocable<void(const absl::Status&)> done);
  // A payload to or from the peer has ended well.
  void NoteProgress(PeerId peer) { progress_[peer] = now; }
  // Forgets progress from longer than drain_after ago. Call it before Hangs.
  void ForgetOldProgress();
  // Whether the peer of a payload hangs that should have ended by `must_end_by`, which was
  // drain_after ahead when it was set.
  bool Hangs(PeerId peer, absl::Time must_end_by) const;
  // Counts a frame that failed a check, and logs it (at most one line a second).
  void Reject(PeerId from, const v1::KvFrame& frame, const absl::Status& why);
  // As Reject, without a warning: a correct peer may send the frame too early or too late.
  void RejectUntimely(PeerId from, const v1::KvFrame& frame, const absl::Status& why);

 private:
  // Bound: the peers of a payload that ended within drain_after.
  absl::flat_hash_map<PeerId, absl::Time> progress_;
  int64_t control_sends_in_flight_ = 0;
  absl::Time next_reject_log_ = absl::InfinitePast();
  int64_t rejects_unlogged_ = 0;
  // Completions may outlive the endpoint: they hold a weak_ptr to this and check it. Nothing else
  // shares it.
  std::shared_ptr<KvTransferContext*> alive_ = std::make_shared<KvTransferContext*>(this);
};

}  // namespace tandem::transfer
