// The receiving end of the channel from one peer: matches the headers that arrive over the other
// transport with the payloads that come out of the channel, in the order of their ordinals.
// Invariant: the listener hears of each payload that it gave a place exactly once.
// Thread safety: none; the transfer thread. Owner: the NcclTransport, until the peer is lost or
// offers another channel.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/transfer/nccl_context.h"

namespace tandem::transfer {

class NcclReceiver {
 public:
  // Opens the channel that `offer` names.
  NcclReceiver(NcclContext& context, PeerId peer, const v1::KvChannel& offer);

  uint64_t number() const { return number_; }
  bool open() const { return open_ && channel_ != nullptr; }
  // Something is under way: call Progress() again soon.
  bool busy() const;
  // The header of a payload on this channel. A header with an impossible ordinal or size ends the
  // channel.
  void OnHeader(const v1::KvFrame& frame);
  // Moves payloads on; says whether anything happened.
  bool Progress();
  // Ends the channel. Payloads that the listener gave a place fail with `status`. `tell`: also
  // sends CLOSED to the peer.
  void End(absl::Status status, bool tell);

 private:
  // A payload that is coming out of a slot; without a place it is discarded.
  struct Landing {
    size_t bytes = 0;
    uint64_t receive_id = 0;
    std::optional<ScatterList> place;
    absl::Time began;
  };

  // Starts the receive of each payload whose header is next in order.
  bool StartNext();
  // Copies what has landed in the slots to its places.
  bool FinishLanded();

  NcclContext& context_;
  const PeerId peer_;
  const uint64_t number_;
  std::unique_ptr<kernels::PairChannel> channel_;  // null once it failed
  bool open_ = false;
  absl::Time stands_since_;  // since when nothing has moved although something should
  uint64_t next_ordinal_ = 0, consumed_ = 0, announced_ = 0;
  // Bound: twice kChannelWindow; a header further ahead ends the channel.
  std::map<uint64_t, v1::KvFrame> headers_;
  // Bound: the slots of the channel, fixed.
  std::vector<std::optional<Landing>> landings_;
};

}  // namespace tandem::transfer
