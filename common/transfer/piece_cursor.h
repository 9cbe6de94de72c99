// Walks through the bytes of a list of pieces, and prepares memory ahead of such a walk. Pieces lie
// anywhere in an arena, and the processor's own prefetching starts anew at each piece, and at each
// page: a walk that asks early keeps memory busy meanwhile. Thread safety: none; the owner's
// thread. Owner: the function that walks.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem::transfer {

template <typename Byte>
class PieceCursor {
 public:
  explicit PieceCursor(absl::Span<const absl::Span<Byte>> pieces) : pieces_(pieces) {}

  // At most `bytes_max` bytes that lie together; empty at the end of the list.
  absl::Span<Byte> Next(size_t bytes_max) {
    while (rest_.empty() && next_ < pieces_.size()) rest_ = pieces_[next_++];
    const absl::Span<Byte> taken = rest_.subspan(0, bytes_max);
    rest_.remove_prefix(taken.size());
    return taken;
  }

 private:
  const absl::Span<const absl::Span<Byte>> pieces_;
  size_t next_ = 0;
  absl::Span<Byte> rest_;
};

class PieceFetcher {
 public:
  explicit PieceFetcher(absl::Span<const absl::Span<const std::byte>> pieces) : cursor_(pieces) {}

  // Asks for the next `bytes` bytes to come to the second-level cache; reads none of them.
  void Fetch(size_t bytes) {
    constexpr uintptr_t kLineBytes = 64;
    while (bytes > 0) {
      const absl::Span<const std::byte> piece = cursor_.Next(bytes);
      if (piece.empty()) return;
      const auto begin = reinterpret_cast<uintptr_t>(piece.data());
      for (uintptr_t line = begin / kLineBytes * kLineBytes; line < begin + piece.size();
           line += kLineBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
      }
      bytes -= piece.size();
    }
  }

 private:
  PieceCursor<const std::byte> cursor_;
};

// Prepares pages that are about to be written past the caches. Such stores do not wait for what
// lies in memory, but they do wait until the processor knows the physical address of their page,
// which takes it several reads of memory at a piece that lies anywhere.
class PagePreparer {
 public:
  explicit PagePreparer(absl::Span<const absl::Span<std::byte>> pieces) : cursor_(pieces) {}

  // Fetches one line of each page of the next `bytes` bytes, and with it the page's address.
  void Prepare(size_t bytes) {
    constexpr uintptr_t kPageBytes = 4096;
    while (bytes > 0) {
      const absl::Span<std::byte> piece = cursor_.Next(bytes);
      if (piece.empty()) return;
      const auto begin = reinterpret_cast<uintptr_t>(piece.data()), end = begin + piece.size();
      for (uintptr_t at = begin; at < end; at = (at / kPageBytes + 1) * kPageBytes) {
        if (at / kPageBytes == prepared_) continue;
        _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
        prepared_ = at / kPageBytes;
      }
      bytes -= piece.size();
    }
  }

 private:
  PieceCursor<std::byte> cursor_;
  uintptr_t prepared_ = 0;  // the page that was prepared last
};

}  // namespace tandem::transfer
