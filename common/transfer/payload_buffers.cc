#include "common/transfer/payload_buffers.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::transfer {
namespace {

// Twice what the KV transfer has in flight to one peer, in frames of the largest size.
constexpr size_t kKeptMax = 32;
// Sizes are rounded up, so that frames of almost one size use the same buffers.
constexpr size_t kRound = 64 << 10;

}  // namespace

PayloadBuffers::Buffer PayloadBuffers::Take(size_t bytes) {
  TANDEM_CHECK(bytes > 0);
  const size_t rounded = (bytes + kRound - 1) / kRound * kRound;
  if (bytes_out_ > 0 && bytes_out_ + rounded > bytes_max_) return {};
  bytes_out_ += rounded;
  const auto fits = [&](const Buffer& buffer) { return buffer.bytes == rounded; };
  // The last one that was used is likeliest in the caches.
  const auto found = std::find_if(kept_.rbegin(), kept_.rend(), fits);
  if (found == kept_.rend()) {
    return {std::unique_ptr<std::byte[]>(new std::byte[rounded]), rounded};
  }
  Buffer buffer = std::move(*found);
  kept_.erase(std::next(found).base());
  return buffer;
}

void PayloadBuffers::Give(Buffer buffer) {
  bytes_out_ -= buffer.bytes;
  if (kept_.size() >= kKeptMax) kept_.erase(kept_.begin());
  kept_.push_back(std::move(buffer));
}

}  // namespace tandem::transfer
