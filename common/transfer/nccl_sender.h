// The sending end of a link to one peer: from the offer to its end, and what waits for it.
// Thread safety: none; the transfer thread. Owner: the NcclTransport, until the peer is gone.
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

  // Offers a link to `peer`.
  NcclSender(NcclContext& context, PeerId peer);

  // Payloads can go this way.
  bool open() const { return open_; }
  // Progress() is to be called soon.
  bool busy() const;
  // As KvTransport::Send. REQUIRES: open(), the payload fits a slot.
  void Send(const v1::KvFrame& frame, GatherList payload, Done done);
  // What the peer says of the link.
  void OnFrame(const v1::KvLink& frame);
  // Moves things on; says whether anything happened.
  bool Progress();
  // The peer is gone: completes everything with `status`.
  void End(const absl::Status& status);

 private:
  struct Payload {
    v1::KvFrame frame;
    GatherList bytes;
    Done done;
    absl::Time started;
  };

  absl::Status Offer();
  void Pump();
  absl::Status Fill(int slot, const GatherList& payload);
  // Sends what is unfinished by the other transport, and everything later.
  void Fail(absl::Status why);
  // All unfinished payloads, in order.
  std::vector<Payload> TakeAll();

  NcclContext& context_;
  const PeerId peer_;
  uint64_t number_ = 0;
  std::unique_ptr<kernels::PairChannel> link_;  // null once it failed
  absl::Time offered_;
  bool peer_ready_ = false, open_ = false;
  uint64_t next_ordinal_ = 0, consumed_ = 0;
  // Bound: the payloads in flight that the KV transfer allows.
  std::deque<Payload> waiting_;
  // Bound: the slots of the link, fixed.
  std::vector<std::optional<Payload>> in_flight_;
};

}  // namespace tandem::transfer
