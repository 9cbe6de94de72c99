#include "common/rpc/convert.h"

#include <algorithm>

namespace tandem::rpc {

request::SamplingParams FromWire(const v1::SamplingParams& wire) {
  request::SamplingParams params;
  if (wire.has_temperature()) params.temperature = wire.temperature();
  if (wire.has_top_k()) params.top_k = wire.top_k() == -1 ? 0 : wire.top_k();
  if (wire.has_top_p()) params.top_p = wire.top_p();
  if (wire.has_min_p()) params.min_p = wire.min_p();
  if (wire.has_repetition_penalty()) params.repetition_penalty = wire.repetition_penalty();
  if (wire.has_presence_penalty()) params.presence_penalty = wire.presence_penalty();
  if (wire.has_frequency_penalty()) params.frequency_penalty = wire.frequency_penalty();
  params.seed = wire.seed();
  for (const auto& [token, bias] : wire.logit_bias()) params.logit_bias.emplace_back(token, bias);
  // A protobuf map has no order; the value's order must not depend on it.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  params.allowed_token_ids.assign(wire.allowed_token_ids().begin(), wire.allowed_token_ids().end());
  std::sort(params.allowed_token_ids.begin(), params.allowed_token_ids.end());
  if (wire.has_logprobs()) params.logprobs = wire.logprobs();
  for (const v1::TokenIds& word : wire.bad_words())
    params.bad_words.emplace_back(word.ids().begin(), word.ids().end());
  return params;
}

request::StopParams FromWire(const v1::StopParams& wire) {
  request::StopParams params;
  params.max_tokens = wire.max_tokens();
  params.min_tokens = wire.min_tokens();
  params.stop.assign(wire.stop().begin(), wire.stop().end());
  params.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  std::sort(params.stop_token_ids.begin(), params.stop_token_ids.end());
  params.ignore_eos = wire.ignore_eos();
  params.include_stop_str_in_output = wire.include_stop_str_in_output();
  return params;
}

v1::SamplingParams ToWire(const request::SamplingParams& params) {
  v1::SamplingParams wire;
  wire.set_temperature(params.temperature);
  wire.set_top_k(params.top_k);
  wire.set_top_p(params.top_p);
  wire.set_min_p(params.min_p);
  wire.set_repetition_penalty(params.repetition_penalty);
  wire.set_presence_penalty(params.presence_penalty);
  wire.set_frequency_penalty(params.frequency_penalty);
  wire.set_seed(params.seed);
  for (const auto& [token, bias] : params.logit_bias) (*wire.mutable_logit_bias())[token] = bias;
  for (const TokenId token : params.allowed_token_ids) wire.add_allowed_token_ids(token);
  if (params.logprobs.has_value()) wire.set_logprobs(*params.logprobs);
  for (const std::vector<TokenId>& word : params.bad_words)
    wire.add_bad_words()->mutable_ids()->Add(word.begin(), word.end());
  return wire;
}

v1::StopParams ToWire(const request::StopParams& params) {
  v1::StopParams wire;
  wire.set_max_tokens(params.max_tokens);
  wire.set_min_tokens(params.min_tokens);
  for (const std::string& stop : params.stop) wire.add_stop(stop);
  for (const TokenId token : params.stop_token_ids) wire.add_stop_token_ids(token);
  wire.set_ignore_eos(params.ignore_eos);
  wire.set_include_stop_str_in_output(params.include_stop_str_in_output);
  return wire;
}

request::GuidedParams FromWire(const v1::GuidedDecoding& wire) {
  using Kind = request::GuidedParams::Kind;
  switch (wire.constraint_case()) {
    case v1::GuidedDecoding::kJsonSchema:
      return {.kind = Kind::kJsonSchema, .text = wire.json_schema()};
    case v1::GuidedDecoding::kJsonObject:
      if (!wire.json_object()) break;
      return {.kind = Kind::kJsonObject};
    case v1::GuidedDecoding::kRegex:
      return {.kind = Kind::kRegex, .text = wire.regex()};
    case v1::GuidedDecoding::kChoice:
      return {.kind = Kind::kChoice,
              .choices = {wire.choice().options().begin(), wire.choice().options().end()}};
    case v1::GuidedDecoding::kGrammar:
      return {.kind = Kind::kGrammar, .text = wire.grammar()};
    case v1::GuidedDecoding::CONSTRAINT_NOT_SET:
      break;
  }
  return {};
}

v1::GuidedDecoding ToWire(const request::GuidedParams& params) {
  using Kind = request::GuidedParams::Kind;
  v1::GuidedDecoding wire;
  switch (params.kind) {
    case Kind::kJsonSchema:
      wire.set_json_schema(params.text);
      break;
    case Kind::kJsonObject:
      wire.set_json_object(true);
      break;
    case Kind::kRegex:
      wire.set_regex(params.text);
      break;
    case Kind::kChoice:
      wire.mutable_choice()->mutable_options()->Add(params.choices.begin(), params.choices.end());
      break;
    case Kind::kGrammar:
      wire.set_grammar(params.text);
      break;
    case Kind::kNone:
      break;
  }
  return wire;
}

v1::FinishReason ToWire(request::FinishReason reason) {
  switch (reason) {
    case request::FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case request::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case request::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case request::FinishReason::kAborted:
      return v1::FINISH_REASON_ABORTED;
    case request::FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

request::FinishReason FromWire(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return request::FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return request::FinishReason::kLength;
    case v1::FINISH_REASON_ABORTED:
      return request::FinishReason::kAborted;
    case v1::FINISH_REASON_ERROR:
      return request::FinishReason::kError;
    default:
      return request::FinishReason::kNone;
  }
}

v1::StatusProto ToWire(const absl::Status& status) {
  v1::StatusProto wire;
  wire.set_code(static_cast<int>(status.code()));
  wire.set_message(std::string(status.message()));
  return wire;
}

absl::Status FromWire(const v1::StatusProto& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

}  // namespace tandem::rpc
