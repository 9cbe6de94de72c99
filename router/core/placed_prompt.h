// The tokens that a placement's legs start from: the prompt, then the tokens that earlier
// placements delivered to the client. A retry thus continues the answer instead of repeating it.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: tokens() changes only in Extend, which the owner calls only between placements, so
// both legs of one placement start from the same tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "common/kv/block_hash.h"
#include "router/core/hashed_blocks.h"
#include "router/fleet/fleet.h"
#include "router/fleet/model_identity.h"

namespace tandem::router {

class PlacedPrompt {
 public:
  // `hashed`: what is known of the prompt's blocks, and learns what is made here; may be null.
  explicit PlacedPrompt(SharedValue<std::vector<TokenId>> prompt,
                        std::shared_ptr<HashedBlocks> hashed = nullptr)
      : tokens_(std::move(prompt)), hashed_(std::move(hashed)) {}

  // Appends what has been delivered since the last call. `delivered`: the whole answer so far.
  void Extend(const std::vector<TokenId>& delivered) {
    const auto count = static_cast<int32_t>(delivered.size());
    if (count == delivered_) return;
    std::vector<TokenId> tokens = *tokens_;
    tokens.insert(tokens.end(), delivered.begin() + delivered_, delivered.end());
    tokens_ = std::move(tokens);
    delivered_ = count;
    hashes_generation_ = 0;
    hashed_ = nullptr;  // it is of the prompt alone
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
      hashes_ = Made(fleet, model, cache_salt, hasher);
      hashes_generation_ = fleet.generation();
      if (hashed_ != nullptr) *hashed_ = {hashes_generation_, hashes_};
    }
    return *hashes_;
  }

 private:
  using List = std::vector<kv::BlockHash>;
  // Of blocks that `hashed_` knows, no hash is made.
  std::shared_ptr<const List> Made(const Fleet& fleet, const ModelIdentity& model,
                                   const std::string& cache_salt, kv::BlockHasher& hasher) const {
    const auto block_tokens = static_cast<size_t>(fleet.block_tokens());
    const size_t blocks = tokens_->size() / block_tokens;
    const bool knows = hashed_ != nullptr && hashed_->generation == fleet.generation() &&
                       hashed_->hashes->size() <= blocks;
    if (knows && hashed_->hashes->size() == blocks) return hashed_->hashes;
    List hashes;
    hashes.reserve(blocks);
    if (knows) hashes.insert(hashes.end(), hashed_->hashes->begin(), hashed_->hashes->end());
    kv::BlockHash parent = hashes.empty()
                               ? hasher.Salt(model.fingerprint, fleet.numerics_id(), cache_salt)
                               : hashes.back();
    while (hashes.size() < blocks) {
      parent = hasher.Next(parent, absl::MakeConstSpan(*tokens_).subspan(
                                       hashes.size() * block_tokens, block_tokens));
      hashes.push_back(parent);
    }
    return std::make_shared<const List>(std::move(hashes));
  }

  SharedValue<std::vector<TokenId>> tokens_;  // at most the context; until a retry, the request's
  int32_t delivered_ = 0;
  std::shared_ptr<HashedBlocks> hashed_;  // shared with the BeamGroup
  // Bound: the context's blocks. Shared with hashed_; never null.
  std::shared_ptr<const List> hashes_ = std::make_shared<const List>();
  uint64_t hashes_generation_ = 0;  // of the fleet; 0 = hashes_ are not valid
};

}  // namespace tandem::router
