// The hash engine's part in lending, at both ends: LentHashes asks creditors about lent tokens, and
// NewHashPartialAttention answers (hash_engine.h says what an answer is).
// Thread safety: LentHashes: the engine thread. The answering object: one thread at a time, beside
// Step. Owner: the hash engine; the node's lending plane.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "common/engine/remote_attention.h"
#include "common/kv/block_arena.h"

namespace tandem::engine {

class LentHashes {
 public:
  // `spec` outlives it.
  explicit LentHashes(const EngineSpec& spec) : spec_(spec) {}
  void SetPeers(RemoteAttention* peers) { peers_ = peers; }

  // At a step's beginning, then once for each layer. Sets the failures of slices whose creditors do
  // not answer.
  void Begin(absl::Span<const SequenceSlice> slices);
  void Ask(absl::Span<const SequenceSlice> slices, int layer);
  // Asks for the hash of the last lent token, if the slice's first row follows it; after Begin.
  // nullopt: it does not. Without an answer the hash means nothing, and the slice has failed.
  std::optional<uint64_t> LastHash(const SequenceSlice& slice);
  // The hashes of the slice's lent tokens, after Ask for layer 0; empty without.
  absl::Span<const uint64_t> Of(const SequenceSlice& slice) const;

 private:
  const EngineSpec& spec_;
  RemoteAttention* peers_ = nullptr;
  // Of the running step. Bound: the step's slices.
  absl::flat_hash_map<const RemoteKv*, std::vector<uint64_t>> hashes_;
};

// `spec` and `arena` outlive it.
std::unique_ptr<PartialAttention> NewHashPartialAttention(const EngineSpec& spec,
                                                          int64_t kv_bytes_per_token_layer,
                                                          const kv::BlockArena& arena);

}  // namespace tandem::engine
