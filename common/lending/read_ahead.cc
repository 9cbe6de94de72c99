#include "common/lending/read_ahead.h"

#include <unistd.h>

#include <utility>

namespace tandem::lending {

void ReadAhead::Restart() {
  parts_.clear();
  next_ = 0;
  bytes_left_ = bytes_max_;
}

void ReadAhead::Add(int32_t layer, std::shared_ptr<const std::vector<BlockId>> owner,
                    absl::Span<const BlockId> blocks) {
  if (bytes_left_ <= 0 || blocks.empty() || parts_.size() >= kPartsMax) return;
  parts_.push_back({.layer = layer, .owner = std::move(owner), .blocks = blocks});
}

void ReadAhead::FetchSome() {
  Part& part = parts_[next_];
  const int64_t bytes = attention_.FetchForNextLayer(part.layer, part.blocks.first(1));
  part.blocks.remove_prefix(1);
  if (part.blocks.empty()) ++next_;
  bytes_left_ -= bytes;
  if (bytes <= 0 || bytes_left_ <= 0) Restart();
}

int64_t ReadAheadBytes() {
  constexpr int64_t kUnknownCacheHalf = 512 << 10;
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes / 2 : kUnknownCacheHalf;
}

}  // namespace tandem::lending
