#include "router/core/request_input.h"

#include <algorithm>

#include "router/core/beam_tree.h"

namespace tandem::router {

namespace {

template <typename T>
size_t BytesOf(const std::vector<T>& list) {
  return list.size() * sizeof(T);
}

// What a list of lists takes, with each list's own head.
template <typename T>
size_t BytesOfAll(const std::vector<T>& lists) {
  size_t bytes = BytesOf(lists);
  for (const T& list : lists) bytes += list.size() * sizeof(list[0]);
  return bytes;
}

}  // namespace

int64_t RequestInput::HeldBytesMax() const {
  // A front end keeps them, and 16 bytes for each of theirs to look for them (StopMatcher).
  const size_t stop_bytes = BytesOfAll(stop->stop) + BytesOf(stop->stop_token_ids);
  const size_t shared = BytesOf(*prompt) + guided->text.size() + BytesOfAll(guided->choices) +
                        BytesOf(sampling->logit_bias) + BytesOf(sampling->allowed_token_ids) +
                        BytesOfAll(sampling->bad_words) + 18 * stop_bytes;
  const size_t own = kSequenceBytes + cache_salt.size() + stop_bytes +
                     static_cast<size_t>(stop->max_tokens) * sizeof(TokenId);
  return static_cast<int64_t>(shared) + front_end_bytes +
         sequences_at_once() * static_cast<int64_t>(own) + LogprobBytesMax() + BeamBytesMax();
}

int64_t RequestInput::BeamBytesMax() const {
  if (!beams.has_value()) return 0;
  const int64_t tokens = stop->max_tokens, width = beams->width;
  const int64_t top = sampling->logprobs.value_or(0);
  // At most `width` beams run, and as many are complete, with nothing in common.
  const int64_t tree = 2 * width * tokens * (BeamTree::kNodeBytes + top * BeamTree::kTopBytes);
  const int64_t prompts = width * (static_cast<int64_t>(prompt->size()) + tokens) *
                          (static_cast<int64_t>(sizeof(TokenId)) + kHashBytesOfToken);
  // What the step's beams may go on with.
  const auto stops = static_cast<int64_t>(stop->stop_token_ids.size() + eos_token_ids.size());
  const int64_t offered = width * (width + stops) * kStreamedLogprobBytes;
  const int64_t answers = sequences * tokens * (kStreamedTokenBytes + top * kStreamedLogprobBytes);
  return tree + prompts + offered + answers;
}

int64_t RequestInput::LogprobBytesMax() const {
  int64_t bytes = 0;
  if (prompt_logprobs.has_value()) {
    bytes += static_cast<int64_t>(prompt->size()) * (1 + *prompt_logprobs) * kPromptLogprobBytes;
  }
  if (answer_logprobs.has_value()) {
    const int64_t tokens = stop->max_tokens;
    bytes += keeps_answers ? tokens * (1 + *answer_logprobs) * kAnswerLogprobBytes
                           : std::min(tokens, kStreamedTokensMax) *
                                 (kStreamedTokenBytes + *answer_logprobs * kStreamedLogprobBytes);
  }
  return sequences_at_once() * bytes;
}

}  // namespace tandem::router
