// Everything the parts of one request's stream say, per answer, with log-probabilities as bits.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/client/client.h"

namespace tandem::testing {

struct OneAnswer {
  std::string text;
  std::vector<int32_t> tokens;
  std::string bits;  // tokens and all their log-probabilities
  int first_index = -1;
  v1::Finished finished;
  int ends = 0;
};

struct AnswersOf {
  absl::Status status;
  v1::Started started;
  std::map<int, OneAnswer> by_index;
  std::string prompt_scores;  // bits
  int prompt_scored = 0;
  int deltas_before_scores = 0;

  // All that must not depend on who served the request.
  std::string Bits() const {
    std::string all = prompt_scores;
    for (const auto& [index, answer] : by_index)
      absl::StrAppend(&all, "#", index, " ", answer.bits, answer.text, " reason ",
                      answer.finished.reason(), " ", answer.finished.stop_string(), "\n");
    return all;
  }
  int64_t KvBytes() const {
    int64_t bytes = 0;
    for (const auto& [index, answer] : by_index) bytes += answer.finished.route().kv_bytes_moved();
    return bytes;
  }
};

inline void AppendBits(const v1::GeneratedToken& token, std::string& bits) {
  const auto add = [&](int32_t id, float logprob) {
    uint32_t raw = 0;
    std::memcpy(&raw, &logprob, sizeof(raw));
    absl::StrAppend(&bits, id, ":", raw, " ");
  };
  add(token.token_id(), token.logprob());
  for (const v1::TokenLogprob& top : token.top_logprobs()) add(top.token_id(), top.logprob());
  bits += "| ";
}

inline AnswersOf AskAll(cli::Client& client, const v1::GenerateRequest& request,
                        int tokens_max = 1 << 30) {
  AnswersOf all;
  int tokens = 0;
  all.status = client.Generate(request, [&](const v1::GenerateResponse& part) {
    if (part.has_started()) all.started = part.started();
    for (const v1::GeneratedToken& token : part.prompt_logprobs().tokens()) {
      AppendBits(token, all.prompt_scores);
      ++all.prompt_scored;
    }
    if (part.has_delta()) {
      if (all.prompt_scored == 0) ++all.deltas_before_scores;
      OneAnswer& answer = all.by_index[part.delta().sequence_index()];
      answer.text += part.delta().text();
      for (const v1::GeneratedToken& token : part.delta().tokens()) {
        if (answer.first_index < 0) answer.first_index = token.index();
        answer.tokens.push_back(token.token_id());
        AppendBits(token, answer.bits);
        ++tokens;
      }
    }
    if (part.has_finished()) {
      OneAnswer& answer = all.by_index[part.finished().sequence_index()];
      answer.finished = part.finished();
      ++answer.ends;
    }
    return tokens < tokens_max;
  });
  return all;
}

}  // namespace tandem::testing
