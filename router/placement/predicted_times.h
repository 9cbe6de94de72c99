// What a placement is predicted to take, in microseconds: the first token from a prefill node or
// from the decode node alone, the rest of the KV transfer, the decode node's steps, and what the
// sequences lose that are there already.
//
//   first token = max(wait, read or fetch) + compute + late
//   cost        = first token + backlog + rest of the transfer + weight * harm
//
// A prompt waits for those that the node computes before it, which its urgency decides.
// A prompt that reads or fetches its beginning does not hold up the node's queue, so both go on at
// the same time. `late` is how late the node's first tokens came recently, beyond what was
// predicted (NodeRecord).
//
// Thread safety: none; used on the core's strand. Owner: CostPlacement, for one placement.
// Invariants: every figure is finite and at least 0, whatever nodes say of themselves.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/candidate.h"

namespace tandem::router {

// A prompt on the node that computes it.
struct PromptTimes {
  double read_host_us = 0;  // of read_us: from host memory; the rest is from disk
  double wait_us = 0, read_us = 0, fetch_us = 0, compute_us = 0, late_us = 0;
  int64_t computed_tokens = 0;
  double first_token_us() const {
    return std::max(wait_us, read_us + fetch_us) + compute_us + late_us;
  }
};

// A sequence on its decode node.
struct DecodeTimes {
  double step_us = 0;     // once it has joined
  double harm_us = 0;     // to all sequences, until the answer is complete
  double backlog_us = 0;  // prompts that the node computes itself, beside generated tokens
};

struct PlacementTimes {
  double first_token_us = 0, transfer_us = 0, step_us = 0, harm_us = 0, cost_us = 0;
};

class PredictedTimes {
 public:
  // An answer's tokens that still come, of a sequence of which nothing is known: about the mean of
  // public conversation traces.
  static constexpr int64_t kAnswerTokens = 256;
  // The weight of harm: a second that another sequence loses counts as a second of this one.
  static constexpr double kHarmWeight = 1;
  // What a pause of a running answer weighs beside a wait for an answer's beginning.
  static constexpr double kPauseWeight = 4;
  // What computing more than Prompt::short_tokens on a decode node costs in any case: predictions
  // of a few milliseconds are not worth an interruption.
  static constexpr double kLocalUs = 5000;
  // What passing a prompt from node to node costs beside the bytes: two control messages and the
  // transfer's own.
  static constexpr double kTransferFixedUs = 1000;

  struct Prompt {
    int64_t tokens = 0;
    int64_t tokens_total = 0;      // with its longest answer
    int64_t fetch_tokens_min = 0;  // 0 = nodes do not fetch
    // A decode node that computes at most so many tokens itself makes only those sequences wait
    // that it has.
    int64_t short_tokens = 0;
    absl::Time now;
    request::Urgency urgency;
    absl::Span<const kv::BlockHash> hashes;  // of its blocks
  };
  // `holders`: of the prompt's beginning. What is named here outlives this.
  PredictedTimes(const Fleet& fleet, const PrefixIndex& index, const Prompt& prompt,
                 const PrefixIndex::Matches& holders);

  absl::Time now() const { return prompt_.now; }
  // On a node that has its prompts' beginnings in memory or in storage, or computes them. Reads
  // what lies in storage, or computes it, whichever is quicker.
  PromptTimes FromOwnBlocks(const Candidate& candidate) const;
  // On a node that fetches, too, what another one holds, where that pays.
  PromptTimes WithFetch(const Candidate& candidate) const;
  DecodeTimes Decoding(const Candidate& candidate) const;
  PlacementTimes Pair(const Candidate& prefill, const PromptTimes& prompt, const Candidate& decode,
                      const DecodeTimes& decoding) const;
  PlacementTimes Alone(const Candidate& decode, const PromptTimes& prompt,
                       const DecodeTimes& decoding) const;

 private:
  // A node that holds the prompt's beginning.
  struct Holder {
    const Node* node = nullptr;
    int64_t tokens = 0;
    ReadTokens stored;  // of them, the last ones, in its storage
  };
  static bool Better(const Holder& a, const Holder& b);
  // The tokens that the node is trusted to hold.
  int64_t Trusted(const Node& node, int64_t tokens) const;
  double BytesOf(int64_t tokens, const Node& node) const {
    return static_cast<double>(tokens) * node.kv_bytes_per_token;
  }

  const Fleet& fleet_;
  const Prompt prompt_;
  // The two that hold most, so that there is one that is not the node itself.
  std::array<Holder, 2> holders_;
};

}  // namespace tandem::router
