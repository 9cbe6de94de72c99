// The sending end of the channel to one peer, from its offer to its end, and the payloads that wait
// for a slot or are in one. Invariants: every payload completes exactly once, through the channel
// or, after the channel failed, through the other transport. Thread safety: none; the transfer
// thread. Owner: the NcclTransport, until the peer is lost.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "common/transfer/nccl_context.h"

namespace tandem::transfer {

class NcclSender {
 public:
  using Done = absl::AnyInvocable<void(const absl::Status&)>;

  // Offers a channel to `peer`.
  NcclSender(NcclContext& context, PeerId peer);

  // Whether the channel takes payloads.
  bool open() const { return open_; }
  // Something is under way: call Progress() again soon.
  bool busy() const;
  // As KvTransport::Send. REQUIRES: open(), the payload fits a slot.
  void Send(const v1::KvFrame& frame, GatherList payload, Done done);
  // READY, CONSUMED or CLOSED from the peer.
  void OnFrame(const v1::KvChannel& frame);
  // Moves payloads on; says whether anything happened.
  bool Progress();
  // The peer is lost: completes everything with `status`.
  void End(const absl::Status& status);

 private:
  struct Payload {
    v1::KvFrame frame;
    GatherList bytes;
    Done done;
    absl::Time started;
  };

  absl::Status Offer();
  // Moves waiting payloads into idle slots.
  void Pump();
  // Copies a payload into a slot.
  absl::Status Fill(int slot, const GatherList& payload);
  // Ends the channel and sends all unfinished payloads through the other transport.
  void Fail(absl::Status why);
  // All unfinished payloads, in order.
  std::vector<Payload> TakeAll();

  NcclContext& context_;
  const PeerId peer_;
  uint64_t number_ = 0;
  std::unique_ptr<kernels::PairChannel> channel_;  // null once it failed
  absl::Time offered_;
  bool peer_ready_ = false, open_ = false;
  uint64_t next_ordinal_ = 0, consumed_ = 0;
  // Bound: the payloads in flight that the KV transfer allows.
  std::deque<Payload> waiting_;
  // Bound: the slots of the channel, fixed.
  std::vector<std::optional<Payload>> in_flight_;
};

}  // namespace tandem::transfer
