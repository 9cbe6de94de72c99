#include "router/front_end/http/logprobs_json.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

// JSON has no infinity: what OpenAI's API says for a token that cannot be.
constexpr double kLogprobMin = -9999.0;

double Finite(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : kLogprobMin;
}

std::string TokenText(const LogprobsStyle& style, int32_t id) {
  if (style.tokens_as_ids) return absl::StrCat("token_id:", id);
  return style.tokenizer.TokenText(TokenId(id));
}

Json TokenJson(const LogprobsStyle& style, int32_t id, float logprob) {
  Json bytes = Json::array();
  for (const char byte : style.tokenizer.TokenBytes(TokenId(id))) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return {{"token", TokenText(style, id)}, {"logprob", Finite(logprob)}, {"bytes", bytes}};
}

// Characters, as Python counts them.
int64_t CodePoints(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Json ChatLogprob(const LogprobsStyle& style, const v1::GeneratedToken& token, int32_t top) {
  Json object = TokenJson(style, token.token_id(), token.logprob());
  Json tops = Json::array();
  const int count = std::min(top, token.top_logprobs_size());
  for (int i = 0; i < count; ++i) {
    const v1::TokenLogprob& one = token.top_logprobs(i);
    tops.push_back(TokenJson(style, one.token_id(), one.logprob()));
  }
  object["top_logprobs"] = std::move(tops);
  return object;
}

void CompletionLogprobs::AddText(int32_t token_id) {
  const model::Tokenizer& tokenizer = style_.tokenizer;
  tokens_.push_back(TokenText(style_, token_id));
  int64_t begin = offset_ + held_;
  if (!text_options_.skip_special_tokens || !tokenizer.IsSpecial(TokenId(token_id))) {
    const std::string bytes = tokenizer.TokenBytes(TokenId(token_id));
    const std::string text = tokenizer.TokenText(TokenId(token_id));
    // May begin with what earlier tokens' text was held back for.
    const std::string certain = text_.Append(TokenId(token_id));
    if (!text.empty() && absl::EndsWith(certain, text)) {
      begin = offset_ + CodePoints(certain) - CodePoints(text);
    } else if (held_ > 0 && CodePoints(bytes.substr(0, 1)) == 0) {
      --begin;
    }
    offset_ += CodePoints(certain);
    held_ = certain.empty() ? held_ + CodePoints(bytes) : 0;
  }
  offsets_.push_back(begin);
}

void CompletionLogprobs::AddFirst(int32_t token_id) {
  AddText(token_id);
  logprobs_.push_back(nullptr);
  tops_.push_back(nullptr);
}

void CompletionLogprobs::Add(const v1::GeneratedToken& token) {
  AddText(token.token_id());
  logprobs_.push_back(Finite(token.logprob()));
  Json tops = Json::object();
  const int count = std::min(top_, token.top_logprobs_size());
  for (int i = 0; i < count; ++i) {
    const v1::TokenLogprob& one = token.top_logprobs(i);
    tops[TokenText(style_, one.token_id())] = Finite(one.logprob());
  }
  tops[TokenText(style_, token.token_id())] = Finite(token.logprob());
  tops_.push_back(std::move(tops));
}

Json CompletionLogprobs::Take(size_t skipped) {
  for (Json* const list : {&offsets_, &logprobs_, &tokens_, &tops_}) {
    list->erase(list->begin(), list->begin() + static_cast<std::ptrdiff_t>(skipped));
  }
  Json object = {{"text_offset", std::move(offsets_)},
                 {"token_logprobs", std::move(logprobs_)},
                 {"tokens", std::move(tokens_)},
                 {"top_logprobs", std::move(tops_)}};
  offsets_ = logprobs_ = tokens_ = tops_ = Json::array();
  return object;
}

void AddPromptLogprobs(const LogprobsStyle& style,
                       const google::protobuf::RepeatedPtrField<v1::GeneratedToken>& tokens,
                       Json& list) {
  if (list.is_null()) list = Json::array({nullptr});
  for (const v1::GeneratedToken& token : tokens) {
    Json entries = Json::object();
    const auto add = [&](int32_t id, float logprob, int32_t rank) {
      entries[absl::StrCat(id)] = {{"logprob", Finite(logprob)},
                                   {"rank", rank > 0 ? Json(rank) : Json(nullptr)},
                                   {"decoded_token", TokenText(style, id)}};
    };
    add(token.token_id(), token.logprob(), 0);
    for (const v1::TokenLogprob& one : token.top_logprobs()) {
      add(one.token_id(), one.logprob(), one.rank());
    }
    list.push_back(std::move(entries));
  }
}

}  // namespace tandem::router
