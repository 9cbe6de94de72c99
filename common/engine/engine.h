// The engine: turns a batch of sequence slices into KV in blocks and sampled tokens.
//
// One Step serves prompt chunks, single-token decode rows and any mixture. The engine keeps no
// sequences: a slice carries everything that decides its result. So a sequence that came from
// another node needs only its blocks, and any leg can be replayed on any node. The scheduler that
// calls Step does all bookkeeping.
//
// Contract (idea 1 of the architecture): a slice's KV bytes and sampled token are a function of its
// tokens and sampling parameters alone, bit for bit: not of the other slices, the chunking, the
// thread count or the block ids.
//
// Thread safety: one thread at a time: the owner's until the node runs, then the engine thread. Any
// thread calls spec(), arena(), FetchArrived and the object that NewPartialAttention returned.
// Owner: the node process (or the simulator).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/remote_attention.h"
#include "common/kv/block_arena.h"
#include "common/kv/block_format.h"
#include "common/kv/block_layout.h"
#include "common/request/sampling_params.h"
#include "kernels/api/device_blocks.h"

namespace tandem::engine {

struct EngineSpec {
  std::string model_name;
  std::string model_fingerprint;  // 16 hex digits
  std::string numerics_id;  // backend, ISA class, kernel version, weight type, KV type, block size
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;
  // Bytes of weights that are mapped from a file. The system counts them as memory that it can
  // free, although the engine reads them in every step.
  int64_t mapped_bytes = 0;
  // What can be lent: units of so many tokens, a multiple of block_tokens. 0: the engine neither
  // borrows nor lends.
  int32_t unit_tokens = 0;
  // Some layers look back only so many tokens, and their KV of tokens within that is needed here:
  // the largest such window; 0 = there is none.
  int32_t window_tokens = 0;
  kv::BlockLayout layout;
  kv::BlockFormat format;  // for fleets that allow mixed numerics
};

class TokenCounts;  // token_counts.h

// In a block table: the block lies with a creditor.
inline constexpr BlockId kNoBlock(-1);

struct TopLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural logarithm, raw distribution
};

struct SampledToken {
  TokenId token = 0;
  float logprob = 0;                     // 0 unless asked for
  std::vector<TopLogprob> top_logprobs;  // most likely first; ties by lower token id
  // Set instead of a token when this block of the sequence does not hold its tokens' KV. The step's
  // other slices are unaffected.
  std::optional<BlockId> damaged;
  // Set instead of a token when none can be chosen: each logit is NaN or minus infinity, or its
  // token is not allowed. The step's other slices are unaffected.
  bool no_choice = false;
};

// One sequence's part of a step.
struct SequenceSlice {
  // The sequence so far: prompt, then generated tokens. Rows [num_computed, num_computed + num_new)
  // are computed.
  absl::Span<const TokenId> tokens;
  int64_t num_computed = 0;  // tokens whose KV already lies in `blocks`
  int64_t num_new = 0;       // >= 1
  // Block table covering at least num_computed + num_new tokens. kNoBlock for blocks of lent units.
  absl::Span<const BlockId> blocks;
  // What the sequence has lent; null: nothing. REQUIRES: the engine has a RemoteAttention; the lent
  // units end at or before token num_computed - window_tokens; no fork, no prompt_scores.
  RemoteKv* remote = nullptr;
  // The slice is a fork: before anything is computed, the engine copies this block to the one that
  // the first new row lies in. The rows of that block before the first new one are then there.
  // REQUIRES: another block than the slice's; no slice of the step copies to it.
  std::optional<BlockId> forked_from;
  // Sample the token after the last one. REQUIRES: num_computed + num_new == tokens.size().
  bool sample = false;
  // Tokens before this index are prompt; penalties treat them differently from output.
  int64_t prompt_tokens = 0;
  int32_t sequence_index = 0;
  const request::SamplingParams* sampling = nullptr;  // REQUIRES: set when `sample`
  // The counts of `tokens`, for penalties; null: the engine counts.
  const TokenCounts* counts = nullptr;
  // Bit i % 32 of word i / 32 says whether token i may be chosen: vocab_size / 32 + 1 words; empty
  // = all may. REQUIRES: some token is in this mask and in sampling->allowed_token_ids.
  absl::Span<const uint32_t> allowed;
  // Stop tokens that may not be chosen before min_tokens; nullptr and empty = none.
  const request::StopParams* stop = nullptr;
  absl::Span<const TokenId> eos_token_ids;
  // Score prompt tokens as their predecessors' rows are computed: for each new row i with i + 1 <
  // prompt_tokens, the log-probability of token i + 1 and this many top ones is appended to
  // `prompt_scores`. Raw distribution; bit for bit the same for any chunking.
  int32_t prompt_logprobs = 0;
  std::vector<SampledToken>* prompt_scores = nullptr;  // nullptr = not asked for
};

class Engine {
 public:
  // Called on the engine thread when a layer's KV of all rows of the running step is written.
  using LayerDone = absl::FunctionRef<void(int layer)>;

  virtual ~Engine() = default;

  virtual const EngineSpec& spec() const = 0;

  // Bytes that one step of at most `max_batch_tokens` rows needs beside weights and KV, measured by
  // a profiling run.
  virtual absl::StatusOr<int64_t> ProfileStepBytes(int64_t max_batch_tokens) = 0;
  // After the profiling run: bytes of the engine's own device that may become KV cache, or nullopt
  // for an engine whose KV lies in host memory.
  virtual absl::StatusOr<std::optional<int64_t>> DeviceKvBytes() {
    return std::optional<int64_t>();
  }
  // Sets for how many blocks the windowed layers have memory (kv::BlockLayout); 0, the default: for
  // all. Otherwise each block needs a window slot (arena().slots()) from the first one on that a
  // row of its slice looks back on. Engines without windowed layers ignore it. REQUIRES: before
  // AllocateKv.
  virtual void SetWindowSlots(int64_t) {}
  // Allocates the KV cache. The owner calls it once, before Step.
  virtual absl::Status AllocateKv(int64_t num_blocks) = 0;
  // REQUIRES: AllocateKv succeeded.
  virtual kv::BlockArena& arena() = 0;
  // Where the blocks lie for an engine whose KV is in a device's memory; nullptr for others.
  // REQUIRES: AllocateKv succeeded.
  virtual const kernels::DeviceBlocks* device_blocks() { return nullptr; }
  // Sets whether the arena on the host mirrors the device's blocks (the default). If so, the engine
  // copies what steps write to the arena, and copies what KV transfers put there to the device.
  // Otherwise transfers access device memory directly. Engines without a device ignore it.
  // REQUIRES: AllocateKv succeeded; no Step yet.
  virtual void UseHostMirror(bool) {}

  // Brings blocks that arrived in the arena (BlockArena::MarkArrived) to where steps read them, on
  // the calling thread and beside a running Step, which writes none of them. Without this call, or
  // after an error, the step that reads them does so first; a step that begins meanwhile and needs
  // one of them waits for it. Engines whose KV lies in host memory have nothing to do. Any thread.
  // REQUIRES: AllocateKv succeeded.
  virtual absl::Status FetchArrived(absl::Span<const BlockId>) { return absl::OkStatus(); }

  // What answers other nodes' questions about blocks of this engine's arena; null where unit_tokens
  // is 0. It may be used beside Step. REQUIRES: AllocateKv succeeded. It may not outlive the
  // engine.
  virtual std::unique_ptr<PartialAttention> NewPartialAttention() { return nullptr; }
  // Where slices' lent units are asked about; outlives the engine's last Step. Null: slices may
  // have none.
  virtual void SetRemoteAttention(RemoteAttention*) {}

  // Computes all slices. Returns one token for each slice with `sample`, in slice order. The rows
  // of one step may not exceed the `max_batch_tokens` of ProfileStepBytes. REQUIRES: no two slices
  // write the same block. Errors: kInvalidArgument for a slice that breaks its REQUIRES or a token
  // id outside the vocabulary; the step then computes nothing. Neither a damaged block nor
  // a slice without a token to choose fails the step: see SampledToken.
  virtual absl::StatusOr<std::vector<SampledToken>> Step(absl::Span<const SequenceSlice> slices,
                                                         LayerDone layer_done) = 0;
};

}  // namespace tandem::engine
