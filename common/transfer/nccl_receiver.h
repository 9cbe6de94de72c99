// The receiving end of a link from one peer. Thread safety: none; the transfer thread. Owner: the
// NcclTransport, until the peer is gone or offers another link.
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
  // Opens the link that `offer` names.
  NcclReceiver(NcclContext& context, PeerId peer, const v1::KvLink& offer);

  uint64_t number() const { return number_; }
  bool open() const { return open_ && link_ != nullptr; }
  // Progress() is to be called soon.
  bool busy() const;
  // The header of a payload on this link. A header that cannot be of it ends the link.
  void OnHeader(const v1::KvFrame& frame);
  // Moves things on; says whether anything happened.
  bool Progress();
  // Payloads that were given a place fail with `status`; the peer is told unless it is gone.
  void End(absl::Status status, bool tell);

 private:
  // A payload under way: its header was accepted, or is to be thrown away.
  struct Landing {
    size_t bytes = 0;
    uint64_t receive_id = 0;
    std::optional<ScatterList> place;
    absl::Time began;
  };

  // Begins to take out the payloads that are next.
  bool StartNext();
  bool FinishLanded();

  NcclContext& context_;
  const PeerId peer_;
  const uint64_t number_;
  std::unique_ptr<kernels::PairChannel> link_;  // null once it failed
  bool open_ = false;
  absl::Time stands_since_;  // nothing moved since, though something should
  uint64_t next_ordinal_ = 0, consumed_ = 0, announced_ = 0;
  // Bound: twice kLinkWindow; a header further ahead ends the link.
  std::map<uint64_t, v1::KvFrame> headers_;
  // Bound: the slots of the link, fixed.
  std::vector<std::optional<Landing>> landings_;
};

}  // namespace tandem::transfer
