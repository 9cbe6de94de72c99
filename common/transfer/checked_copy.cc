#include "common/transfer/checked_copy.h"

#include <immintrin.h>
#include <xxh_x86dispatch.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/transfer/piece_cursor.h"

namespace tandem::transfer {
namespace {

// Bytes that are copied and then summed up. They stay in the first-level cache in between; the
// fewer they are, the more the sum of one chunk and the copy of the next overlap. On a Zen 5 EPYC 2
// KiB was the fastest of 1 to 16 KiB.
constexpr size_t kCopyChunkBytes = 2 << 10;
// Bytes that are fetched before they are copied, and whose place's pages are prepared, asked for in
// turns of kTurnBytes. Without it, memory rests from reading while bytes are summed up, and a copy
// begins slowly at each block.
constexpr size_t kCopyAheadBytes = 16 << 10;
constexpr size_t kTurnBytes = 512;
constexpr size_t kLineBytes = 64;

// The whole lines of a place: what lies before and behind them is left to ordinary stores.
struct Lines {
  size_t before = 0, bytes = 0;
};
Lines LinesOf(absl::Span<const std::byte> to) {
  const size_t past_line = reinterpret_cast<uintptr_t>(to.data()) % kLineBytes;
  const size_t before = std::min((kLineBytes - past_line) % kLineBytes, to.size());
  return {.before = before, .bytes = (to.size() - before) / kLineBytes * kLineBytes};
}

// Copies `lines` whole lines to two places with one read of each byte, whatever happens to the
// source meanwhile: past the caches into `to`, which begins at a line, and into `copy`.
using StoreLinesTwice = void (*)(const std::byte* from, std::byte* to, std::byte* copy,
                                 size_t lines);

void StoreLinesTwiceSse(const std::byte* from, std::byte* to, std::byte* copy, size_t lines) {
  for (const std::byte* end = from + lines * kLineBytes; from != end;
       from += kLineBytes, to += kLineBytes, copy += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    asm("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d));  // what was read is not read again
    auto* target = reinterpret_cast<__m128i*>(to);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
    auto* second = reinterpret_cast<__m128i*>(copy);
    _mm_storeu_si128(second, a);
    _mm_storeu_si128(second + 1, b);
    _mm_storeu_si128(second + 2, c);
    _mm_storeu_si128(second + 3, d);
  }
}

__attribute__((target("avx512f"))) void StoreLinesTwiceAvx512(const std::byte* from, std::byte* to,
                                                              std::byte* copy, size_t lines) {
  for (const std::byte* end = from + lines * kLineBytes; from != end;
       from += kLineBytes, to += kLineBytes, copy += kLineBytes) {
    __m512i line = _mm512_loadu_si512(from);
    asm("" : "+v"(line));  // what was read is not read again
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    _mm512_storeu_si512(copy, line);
  }
}

StoreLinesTwice FastestStore() {
  return __builtin_cpu_supports("avx512f") != 0 ? &StoreLinesTwiceAvx512 : &StoreLinesTwiceSse;
}

// As StoreLinesTwice, for any number of bytes and a place that begins anywhere.
void StoreTwice(const std::byte* from, absl::Span<std::byte> to, std::byte* copy) {
  static const StoreLinesTwice store_lines = FastestStore();
  const auto plain = [&](size_t at, size_t bytes) {
    std::memcpy(copy + at, from + at, bytes);
    asm volatile("" ::: "memory");  // the next copy may not read `from` instead
    std::memcpy(to.data() + at, copy + at, bytes);
  };
  const Lines lines = LinesOf(to);
  plain(0, lines.before);
  store_lines(from + lines.before, to.data() + lines.before, copy + lines.before,
              lines.bytes / kLineBytes);
  const size_t done = lines.before + lines.bytes;
  plain(done, to.size() - done);
}

}  // namespace

uint64_t CopyWithChecksum(const GatherList& from, const ScatterList& to) {
  alignas(kLineBytes) std::byte chunk[kCopyChunkBytes];
  PieceCursor<const std::byte> source(from);
  PieceCursor<std::byte> target(to);
  PieceFetcher fetcher(from);
  PagePreparer pages(to);
  fetcher.Fetch(kCopyAheadBytes);
  pages.Prepare(kCopyAheadBytes);
  XXH3_state_t state;
  TANDEM_CHECK(XXH3_64bits_reset(&state) == XXH_OK);
  for (;;) {
    size_t filled = 0;
    while (filled < kCopyChunkBytes) {
      absl::Span<const std::byte> piece =
          source.Next(std::min(kTurnBytes, kCopyChunkBytes - filled));
      if (piece.empty()) break;
      fetcher.Fetch(piece.size());
      pages.Prepare(piece.size());
      while (!piece.empty()) {
        const absl::Span<std::byte> place = target.Next(piece.size());
        TANDEM_CHECK(!place.empty(), "the place is smaller than the payload");
        StoreTwice(piece.data(), place, chunk + filled);
        filled += place.size();
        piece.remove_prefix(place.size());
      }
    }
    if (filled == 0) break;
    XXH3_64bits_update_dispatch(&state, chunk, filled);
  }
  TANDEM_CHECK(target.Next(1).empty(), "the place is larger than the payload");
  // Streamed stores are not ordered with others: a thread that learns of the landing must see the
  // bytes.
  _mm_sfence();
  return XXH3_64bits_digest(&state);
}

}  // namespace tandem::transfer
