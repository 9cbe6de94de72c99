// A validated, tokenized request: what a front end submits to the core. Each of its sequences has a
// copy, and copies share what may be large: the prompt and the constraint.
// router/front_end/request_validation.h makes one from the wire.
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "common/request/guided_params.h"
#include "common/request/sampling_params.h"
#include "router/core/hashed_blocks.h"
#include "router/core/service_tier.h"

namespace tandem::router {

inline constexpr int32_t kSequencesMax = 128;  // n, best_of: the bounds of OpenAI's API
inline constexpr int32_t kBeamWidthMax = 64;

// Beam search instead of sampling: router/core/beam_search.h.
struct BeamParams {
  int32_t width = 1;
  double length_penalty = 1.0;
  bool early_stopping = false;
};

// The tenant that a request counts for in the admission queue. Without tenants all requests share
// one.
struct TenantShare {
  std::string tenant;
  double weight = 1;  // above 0
  // Of the KV blocks, that its sequences may hold at a time, in (0, 1]; 0 = all.
  double kv_share = 0;
};

struct RequestInput {
  RequestId id;
  SharedValue<std::vector<TokenId>> prompt;       // not empty
  SharedValue<request::SamplingParams> sampling;  // seed set
  // max_tokens set. The front end matches stop strings and then calls RouterCore::FinishSequence.
  SharedValue<request::StopParams> stop;
  std::vector<TokenId> eos_token_ids;
  std::string cache_salt;
  SharedValue<request::GuidedParams> guided;  // the constraint on the answer; compiles
  int32_t sequence_index = 0;                 // of the first sequence
  int32_t sequences = 1;                      // answers; their indices rise from sequence_index
  int32_t priority = 0;                       // a lower one is placed and computed earlier
  TenantShare share;                          // the tenant that it counts for
  std::shared_ptr<const ServiceTier> tier;    // null = RouterOptions::default_tier
  // The whole answer must be out within this time, counted from Submit.
  absl::Duration answer_deadline = absl::InfiniteDuration();
  // Report the log-probabilities of the prompt's own tokens, each with this many top ones.
  std::optional<int32_t> prompt_logprobs;
  // The client wants the log-probability of each token of an answer, with this many top ones. The
  // router may ask nodes for more, for its own use (sampling->logprobs).
  std::optional<int32_t> answer_logprobs;
  // The front end keeps all parts of the answers until the last of them has ended. Otherwise it
  // sends them as they come.
  bool keeps_answers = false;
  // What the front end itself keeps of the request, to repeat it in the answer.
  int64_t front_end_bytes = 0;
  std::optional<BeamParams> beams;  // the best `sequences` beams are the answers
  // Of a sequence of a beam search: the hashes that earlier steps have made of its prompt.
  std::shared_ptr<HashedBlocks> hashed;
  // The sequence ends only once its prompt lies on the decode node, however short the answer is:
  // other sequences share that prompt.
  bool installs_prompt = false;
  // Other sequences will continue this prompt: its decode node lets them copy its last block.
  bool forks_follow = false;
  absl::Time arrived;    // when it was submitted; the core sets it
  std::string trace_id;  // from the client's tracing, for log lines; may be empty
  // False when max_tokens is only the default, "up to the context". The core then lowers it to what
  // the largest decode node can hold instead of refusing the request.
  bool max_tokens_given = true;

  // Tokens of prompt and answer that a node must be able to hold. Of an answer without a given
  // limit one: the core lowers the default to what fits.
  int64_t TokensNeeded() const {
    return std::ssize(*prompt) + (max_tokens_given ? int64_t{stop->max_tokens} : 1);
  }
  // How many sequences the request runs at a time.
  int32_t sequences_at_once() const { return beams.has_value() ? beams->width : sequences; }
  // About how many bytes the router holds for the request until it ends: what its sequences share
  // once, and for each of them its own state, its longest answer, stop strings, which a sequence
  // copies when a default max_tokens is lowered, and the log-probabilities: of the prompt, which an
  // answer in JSON may tell with each choice, and of the answer's own tokens.
  int64_t HeldBytesMax() const;
  // The log-probabilities' part of that.
  int64_t LogprobBytesMax() const;
  // A beam search's: its tokens as a tree, a prompt with the hashes of its blocks for each beam,
  // and the answers when it is over; 0 of other requests.
  int64_t BeamBytesMax() const;
  const ServiceTier& TierOr(const ServiceTier& otherwise) const {
    return tier != nullptr ? *tier : otherwise;
  }
};

// A sequence's own state: its machine, its legs and the answer's text that waits for a stop string.
inline constexpr int64_t kSequenceBytes = 4096;
// The hash of a block, for each of its tokens: in blocks of 16.
inline constexpr int64_t kHashBytesOfToken = 1;
// A log-probability of a prompt's token, as a front end keeps it for an answer in JSON: measured,
// 330 to 430 bytes as a tree, and 70 as text.
inline constexpr int64_t kPromptLogprobBytes = 500;
// The same of an answer's token in a chat, which is the largest form: measured, 700 bytes when the
// object is written.
inline constexpr int64_t kAnswerLogprobBytes = 800;
// The parts of a stream that wait for their client: at most so many tokens, since a part has one
// nearly always and front ends keep 16,384 parts. Measured as messages, a token takes so much, and
// each of its top log-probabilities.
inline constexpr int64_t kStreamedTokensMax = 16384;
inline constexpr int64_t kStreamedTokenBytes = 192;
inline constexpr int64_t kStreamedLogprobBytes = 64;

}  // namespace tandem::router
