#include "common/transfer/frame_auth.h"

#include <xxh_x86dispatch.h>

#include <cstring>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/transfer/piece_cursor.h"

namespace tandem::transfer {
namespace {

// Bytes that are summed up at a time, and that are fetched before they are. On a Zen 5 EPYC they
// make the checksum of blocks of 16 and 64 KiB 1.6 and 1.3 times as fast as without fetching.
constexpr size_t kSumChunkBytes = 1 << 10;
constexpr size_t kSumAheadBytes = 16 << 10;

}  // namespace

FrameAuth::FrameAuth(absl::string_view fleet_secret) {
  // XXH3 wants at least 136 bytes of high entropy: stretch what the operator gave.
  for (size_t i = 0; i < secret_.size() / sizeof(uint64_t); ++i) {
    const uint64_t word = XXH3_64bits_withSeed(fleet_secret.data(), fleet_secret.size(), i + 1);
    std::memcpy(secret_.data() + i * sizeof word, &word, sizeof word);
  }
}

uint64_t FrameAuth::Tag(const v1::KvFrame& frame_without_tag) const {
  const std::string bytes = frame_without_tag.SerializeAsString();
  return XXH3_64bits_withSecret(bytes.data(), bytes.size(), secret_.data(), secret_.size());
}

void FrameAuth::Sign(v1::KvFrame& frame) const {
  frame.clear_auth_tag();
  frame.set_auth_tag(Tag(frame));
}

bool FrameAuth::Verify(const v1::KvFrame& frame) const {
  v1::KvFrame bare = frame;
  bare.clear_auth_tag();
  return Tag(bare) == frame.auth_tag();
}

uint64_t PayloadChecksum(absl::Span<const absl::Span<const std::byte>> pieces) {
  if (pieces.size() == 1) return XXH3_64bits_dispatch(pieces[0].data(), pieces[0].size());
  XXH3_state_t state;
  TANDEM_CHECK(XXH3_64bits_reset(&state) == XXH_OK);
  PieceCursor<const std::byte> cursor(pieces);
  PieceFetcher fetcher(pieces);
  fetcher.Fetch(kSumAheadBytes);
  for (;;) {
    const absl::Span<const std::byte> chunk = cursor.Next(kSumChunkBytes);
    if (chunk.empty()) break;
    fetcher.Fetch(chunk.size());
    XXH3_64bits_update_dispatch(&state, chunk.data(), chunk.size());
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace tandem::transfer
