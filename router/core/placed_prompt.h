// The tokens that a placement's legs start from: the prompt, then the tokens that earlier
// placements delivered to the client. A retry thus continues the answer instead of repeating it.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: tokens() changes only in Extend, which the owner calls only between placements, so
// both legs of one placement start from the same tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"
#include "router/fleet/model_identity.h"

namespace tandem::router {

class PlacedPrompt {
 public:
  explicit PlacedPrompt(SharedValue<std::vector<TokenId>> prompt) : tokens_(std::move(prompt)) {}

  // Appends what has been delivered since the last call. `delivered`: the whole answer so far.
  void Extend(const std::vector<TokenId>& delivered) {
    const auto count = static_cast<int32_t>(delivered.size());
    if (count == delivered_) return;
    std::vector<TokenId> tokens = *tokens_;
    tokens.insert(tokens.end(), delivered.begin() + delivered_, delivered.end());
    tokens_ = std::move(tokens);
    delivered_ = count;
    hashes_generation_ = 0;
  }

  const std::vector<TokenId>& tokens() const { return *tokens_; }
  int64_t size() const { return static_cast<int64_t>(tokens_->size()); }
  // How many of tokens(), at their end, are delivered tokens of the answer.
  int32_t delivered() const { return delivered_; }

  // Hashes of the full blocks, for the fleet's numerics id and block size. Kept until either
  // changes. Empty while the fleet is empty and no hashes were made before.
  const std::vector<kv::BlockHash>& Hashes(const Fleet& fleet, const ModelIdentity& model,
                                           const std::string& cache_salt, kv::BlockHasher& hasher) {
    if (!fleet.empty() && hashes_generation_ != fleet.generation()) {
      hashes_ = hasher.Blocks(hasher.Salt(model.fingerprint, fleet.numerics_id(), cache_salt),
                              *tokens_, fleet.block_tokens());
      hashes_generation_ = fleet.generation();
    }
    return hashes_;
  }

 private:
  SharedValue<std::vector<TokenId>> tokens_;  // at most the context; until a retry, the request's
  int32_t delivered_ = 0;
  // Bound: the context's blocks.
  std::vector<kv::BlockHash> hashes_;
  uint64_t hashes_generation_ = 0;  // of the fleet; 0 = hashes_ are not valid
};

}  // namespace tandem::router
