// A validated, tokenized request: what a front end submits to the core.
// router/front_end/request_validation.h makes one from the wire.
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/request/guided_params.h"
#include "common/request/sampling_params.h"

namespace tandem::router {

inline constexpr int32_t kSequencesMax = 128;  // n, best_of: the bounds of OpenAI's API
inline constexpr int32_t kBeamWidthMax = 64;

// Beam search instead of sampling: router/core/beam_search.h.
struct BeamParams {
  int32_t width = 1;
  double length_penalty = 1.0;
  bool early_stopping = false;
};

struct RequestInput {
  RequestId id;
  std::vector<TokenId> prompt;       // not empty
  request::SamplingParams sampling;  // seed set
  // max_tokens set. The front end matches stop strings and then calls RouterCore::FinishSequence.
  request::StopParams stop;
  std::vector<TokenId> eos_token_ids;
  std::string cache_salt;
  request::GuidedParams guided;  // the constraint on the answer; compiles
  int32_t sequence_index = 0;    // of the first sequence
  int32_t sequences = 1;         // answers; their indices rise from sequence_index
  int32_t priority = 0;          // a lower one is placed and computed earlier
  // The whole answer must be out within this time, counted from Submit.
  absl::Duration answer_deadline = absl::InfiniteDuration();
  // Report the log-probabilities of the prompt's own tokens, each with this many top ones.
  std::optional<int32_t> prompt_logprobs;
  std::optional<BeamParams> beams;  // the best `sequences` beams are the answers
  // The sequence ends only once its prompt lies on the decode node, however short the answer is:
  // other sequences share that prompt.
  bool installs_prompt = false;
  std::string trace_id;  // from the client's tracing, for log lines; may be empty
  // False when max_tokens is only the default, "up to the context". The core then lowers it to what
  // the largest decode node can hold instead of refusing the request.
  bool max_tokens_given = true;
};

}  // namespace tandem::router
