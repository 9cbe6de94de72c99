// Collects one request's answers over the several calls of its client, and compares them with the
// expected ones. Thread safety: none; the client's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct SequenceAnswer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;  // until it is finished
  std::string stop_string;
};

class AnswerCollector {
 public:
  // `answers`: the request's n. REQUIRES: the request asks for token ids.
  explicit AnswerCollector(int answers)
      : answers_(static_cast<size_t>(answers)), text_with_tokens_(answers_.size()) {}

  // A call begins, the first or a repeated one: returns its resume_from_tokens, the tokens received
  // so far of each answer.
  std::vector<int32_t> Resume();
  // kDataLoss when tokens are missing, repeated or follow an end.
  absl::Status OnPart(const v1::GenerateResponse& part);

  bool finished() const;
  int64_t tokens() const;  // of all answers, so far
  const std::vector<SequenceAnswer>& answers() const { return answers_; }

 private:
  std::vector<SequenceAnswer> answers_;
  // Of each answer, the bytes of its text that came with its tokens.
  std::vector<size_t> text_with_tokens_;
};

// How `got` differs from `expected`, as text; "" when it does not. With `whole` false `got` may end
// early.
std::string Difference(const std::vector<SequenceAnswer>& expected,
                       const std::vector<SequenceAnswer>& got, bool whole);

}  // namespace tandem::cli
