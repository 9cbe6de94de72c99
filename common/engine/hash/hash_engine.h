// The hash engine: an engine without weights, for tests of the cluster. Its KV bytes are hashes of
// the tokens they stand for.
//
// For token i: h_i = H(h_{i-1}, token_i, salt), h_{-1} = H(salt); layer l stores mix(h_i, l)
// repeated to fill the token's bytes. A step reads h_{start-1} back from the block table to
// continue. A sampling step reads back every layer of every token of the sequence, checks each
// layer against layer 0, folds them all and derives the next token from the fold, the seed
// (temperature > 0) and the position. A lost, stale, swapped, torn or foreign block therefore
// changes the stream. Layers with a window are read back as far as their window reaches; before a
// chunk of a prompt is computed, too, whose first row looks back the farthest: if they do not hold
// their tokens there, all later hashes are wrong. Thread safety: common/engine/engine.h's. Owner:
// the node process, the simulator or a test.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/engine.h"
#include "common/runtime/clock.h"
#include "common/runtime/waiter.h"

namespace tandem::engine {

struct HashEngineOptions {
  int32_t num_layers = 4;
  int32_t block_tokens = 16;
  int64_t kv_bytes_per_token_layer = 64;  // multiple of 8, >= 8
  int32_t vocab_size = 259;  // 256 bytes + specials; generated tokens are printable ASCII bytes
  int32_t context_tokens = 32768;
  // The simulated time of a step: step_time + row_time for each row. 0 = none.
  absl::Duration step_time;
  absl::Duration row_time;
  // One generated token in this many is the end-of-sequence token (258); 0 = never.
  int64_t eos_every = 0;
  kv::ArenaMemory kv_memory = kv::ArenaMemory::kPrivate;
  // The last so many layers look back only window_tokens tokens; fewer than num_layers.
  int32_t windowed_layers = 0;
  int32_t window_tokens = 0;
  int32_t unit_tokens = 256;  // of a unit that can be lent; a multiple of block_tokens
};

// `waiter` and `clock` must outlive the engine. The waiter waits for what the engine's own work, as
// the clock measures it, leaves of the simulated time. Only these sampling parameters have an
// effect: temperature, seed, allowed_token_ids, a slice's mask, and logprobs (whose values are made
// up). Errors: kInvalidArgument for options out of range.
absl::StatusOr<std::unique_ptr<Engine>> NewHashEngine(const HashEngineOptions& options,
                                                      Waiter& waiter = RealWaiter(),
                                                      const Clock& clock = RealClock());

// A creditor answers a question about layer 0 with the 8-byte hashes of the units' tokens, and one
// about another layer with a word for each unit, after it has compared that layer's bytes with
// layer 0. So a lent block that is lost, stale or foreign changes the stream or fails the slice, as
// one that is held here does.

// The stream the hash engine must produce, computed from tokens alone without any blocks: the
// oracle of tests. HashEngineSample has the log-probabilities that `sampling` asks for, too.
SampledToken HashEngineSample(const HashEngineOptions& options, absl::Span<const TokenId> tokens,
                              const request::SamplingParams& sampling, int32_t sequence_index);
TokenId HashEngineNextToken(const HashEngineOptions& options, absl::Span<const TokenId> tokens,
                            const request::SamplingParams& sampling, int32_t sequence_index);

}  // namespace tandem::engine
