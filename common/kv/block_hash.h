// Names of full KV blocks. A block's hash covers all tokens up to its end and a salt (model
// fingerprint, numerics id, tenant), so equal hashes mean equal contents wherever they lie.
// XXH3-128 chained: hash_i = H(hash_{i-1} || tokens of block i), hash_{-1} = H(salt).
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::kv {

struct BlockHash {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const BlockHash&, const BlockHash&) = default;
  friend bool operator<(const BlockHash& a, const BlockHash& b) {
    return a.high != b.high ? a.high < b.high : a.low < b.low;
  }
  template <typename H>
  friend H AbslHashValue(H h, const BlockHash& hash) {
    return H::combine(std::move(h), hash.high, hash.low);
  }
};

// Hashes one after another, as messages carry them: big-endian, kBlockHashBytes each.
inline constexpr size_t kBlockHashBytes = 16;
std::string PackHashes(absl::Span<const BlockHash> hashes);
// kInvalidArgument unless `bytes` has a multiple of that.
absl::StatusOr<std::vector<BlockHash>> UnpackHashes(absl::string_view bytes);

// The chain's start. Each part is length-prefixed, so ("ab","c") differs from ("a","bc").
BlockHash SaltHash(absl::string_view model_fingerprint, absl::string_view numerics_id,
                   absl::string_view cache_salt);
// The hash of one full block after `parent`.
BlockHash NextBlockHash(const BlockHash& parent, absl::Span<const TokenId> block_tokens);
// Hashes of the full blocks of `tokens`: tokens.size() / block_tokens of them.
std::vector<BlockHash> HashBlocks(const BlockHash& salt, absl::Span<const TokenId> tokens,
                                  int block_tokens);

}  // namespace tandem::kv
