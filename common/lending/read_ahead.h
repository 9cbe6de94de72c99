// What debtors will probably ask next. A step asks about the same units in one layer after another,
// and between two questions the debtor computes the rest of a layer. In that time the lending
// thread fetches the next layer's KV into its cache, so that the answer does not wait for memory.
// A wrong guess costs memory traffic only: nothing is read, and no answer depends on it.
// Thread safety: none; the lending thread. Owner: LendingService.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"

namespace tandem::lending {

class ReadAhead {
 public:
  static constexpr size_t kPartsMax = 64;

  // `attention` outlives it. `bytes_max`: what may be fetched between two questions. 0: nothing.
  ReadAhead(engine::PartialAttention& attention, int64_t bytes_max)
      : attention_(attention), bytes_max_(bytes_max), bytes_left_(bytes_max) {
    parts_.reserve(kPartsMax);
  }

  // Forgets what was to be fetched: another question came.
  void Restart();
  // `blocks` of `owner` were asked about in `layer`, in this order. Beyond kPartsMax parts it does
  // nothing.
  void Add(int32_t layer, std::shared_ptr<const std::vector<BlockId>> owner,
           absl::Span<const BlockId> blocks);
  bool has_more() const { return next_ < parts_.size(); }
  // Fetches one block of the next layer: some microseconds. REQUIRES: has_more().
  void FetchSome();

 private:
  struct Part {
    int32_t layer;
    std::shared_ptr<const std::vector<BlockId>> owner;  // of `blocks`
    absl::Span<const BlockId> blocks;                   // those left: at least one
  };

  engine::PartialAttention& attention_;
  const int64_t bytes_max_;
  int64_t bytes_left_;
  size_t next_ = 0;  // of parts_
  // Bound: kPartsMax (64).
  std::vector<Part> parts_;
};

// Half of a processor's L2 cache, as the system tells it; 512 KiB where it does not.
int64_t ReadAheadBytes();

}  // namespace tandem::lending
