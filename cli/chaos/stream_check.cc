#include "cli/chaos/stream_check.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::cli {

std::vector<int32_t> AnswerCollector::Resume() {
  std::vector<int32_t> from;
  for (size_t i = 0; i < answers_.size(); ++i) {
    SequenceAnswer& answer = answers_[i];
    // The next call sends an end again, and text without a token, which was held back until then.
    answer.text.resize(text_with_tokens_[i]);
    answer.reason = v1::FINISH_REASON_UNSPECIFIED;
    answer.stop_string.clear();
    from.push_back(static_cast<int32_t>(answer.tokens.size()));
  }
  return from;
}

absl::Status AnswerCollector::OnPart(const v1::GenerateResponse& part) {
  if (!part.has_delta() && !part.has_finished()) return absl::OkStatus();
  const int index =
      part.has_delta() ? part.delta().sequence_index() : part.finished().sequence_index();
  if (index < 0 || index >= static_cast<int>(answers_.size()))
    return absl::DataLossError(
        absl::StrCat("a part names sequence ", index, ", expected one below ", answers_.size()));
  SequenceAnswer& answer = answers_[static_cast<size_t>(index)];
  if (answer.reason != v1::FINISH_REASON_UNSPECIFIED)
    return absl::DataLossError(absl::StrCat("sequence ", index, " goes on after its end"));
  if (part.has_finished()) {
    answer.reason = part.finished().reason();
    answer.stop_string = part.finished().stop_string();
    return absl::OkStatus();
  }
  for (const v1::GeneratedToken& token : part.delta().tokens()) {
    if (token.index() != static_cast<int>(answer.tokens.size()))
      return absl::DataLossError(absl::StrCat("sequence ", index, ": token index ", token.index(),
                                              " came, expected ", answer.tokens.size()));
    answer.tokens.push_back(token.token_id());
    answer.logprobs.push_back(token.logprob());
  }
  answer.text += part.delta().text();
  if (part.delta().tokens_size() > 0) {
    text_with_tokens_[static_cast<size_t>(index)] = answer.text.size();
  }
  return absl::OkStatus();
}

bool AnswerCollector::finished() const {
  return std::all_of(answers_.begin(), answers_.end(), [](const SequenceAnswer& answer) {
    return answer.reason != v1::FINISH_REASON_UNSPECIFIED;
  });
}

int64_t AnswerCollector::tokens() const {
  int64_t count = 0;
  for (const SequenceAnswer& answer : answers_) count += static_cast<int64_t>(answer.tokens.size());
  return count;
}

namespace {

std::string Difference(const SequenceAnswer& expected, const SequenceAnswer& got, bool whole) {
  for (size_t i = 0; i < got.tokens.size(); ++i) {
    if (i >= expected.tokens.size())
      return absl::StrCat("token ", i, " after the end at ", expected.tokens.size());
    if (got.tokens[i] != expected.tokens[i])
      return absl::StrCat("token ", i, " is ", got.tokens[i], ", expected ", expected.tokens[i]);
    if (got.logprobs[i] != expected.logprobs[i])
      return absl::StrCat("token ", i, " has log-probability ", got.logprobs[i], ", expected ",
                          expected.logprobs[i]);
  }
  if (!absl::StartsWith(expected.text, got.text) || (whole && got.text != expected.text))
    return absl::StrCat("text \"", got.text, "\", expected \"", expected.text, "\"");
  if (!whole) return "";
  if (got.tokens.size() != expected.tokens.size())
    return absl::StrCat(got.tokens.size(), " tokens, expected ", expected.tokens.size());
  if (got.reason != expected.reason)
    return absl::StrCat("ended with ", v1::FinishReason_Name(got.reason), ", expected ",
                        v1::FinishReason_Name(expected.reason));
  if (got.stop_string != expected.stop_string)
    return absl::StrCat("stop string \"", got.stop_string, "\", expected \"", expected.stop_string,
                        "\"");
  return "";
}

}  // namespace

std::string Difference(const std::vector<SequenceAnswer>& expected,
                       const std::vector<SequenceAnswer>& got, bool whole) {
  if (got.size() != expected.size())
    return absl::StrCat(got.size(), " answers, expected ", expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const std::string difference = Difference(expected[i], got[i], whole);
    if (!difference.empty()) return absl::StrCat("answer ", i, ": ", difference);
  }
  return "";
}

}  // namespace tandem::cli
