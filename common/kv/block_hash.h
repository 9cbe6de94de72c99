// Content hashes that name full KV blocks. A block's hash covers all tokens up to the block's end
// and a salt (model fingerprint, numerics id, the request's cache salt). Equal hashes therefore
// mean equal contents on every node. Definition: XXH3-128, chained: hash_i = H(hash_{i-1} || tokens
// of block i), hash_{-1} = H(salt). Thread safety: plain values and pure functions.
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

// Hashes as messages carry them: one after another, big-endian, kBlockHashBytes each.
inline constexpr size_t kBlockHashBytes = 16;
std::string PackHashes(absl::Span<const BlockHash> hashes);
// The inverse. Errors: kInvalidArgument when the size is not a multiple of kBlockHashBytes.
absl::StatusOr<std::vector<BlockHash>> UnpackHashes(absl::string_view bytes);

// The hash that a chain starts with. Each part is length-prefixed, so that ("ab","c") differs from
// ("a","bc").
BlockHash SaltHash(absl::string_view model_fingerprint, absl::string_view numerics_id,
                   absl::string_view cache_salt);
// The hash of one full block that follows the block `parent` (or the salt).
BlockHash NextBlockHash(const BlockHash& parent, absl::Span<const TokenId> block_tokens);
// The hashes of the full blocks of `tokens`: [tokens.size() / block_tokens].
std::vector<BlockHash> HashBlocks(const BlockHash& salt, absl::Span<const TokenId> tokens,
                                  int block_tokens);

}  // namespace tandem::kv
