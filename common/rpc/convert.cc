#include "common/rpc/convert.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <vector>

#include "common/rpc/wire_fields.h"

namespace tandem::rpc {

namespace {

// CopyIn and CopyOut have one overload for each kind of field in kWireFields.

template <typename P, typename W, typename M, typename T>
void CopyIn(const ScalarField<P, W, M, T>& field, const W& wire, P& params) {
  if (field.has == nullptr || (wire.*field.has)()) params.*field.member = (wire.*field.get)();
}

template <typename P, typename W>
void CopyIn(const TokenIdsField<P, W>& field, const W& wire, P& params) {
  const auto& ids = (wire.*field.get)();
  std::vector<TokenId>& tokens = params.*field.member;
  tokens.assign(ids.begin(), ids.end());
  std::sort(tokens.begin(), tokens.end());
}

void CopyIn(const TextsField& field, const v1::StopParams& wire, request::StopParams& params) {
  const auto& texts = (wire.*field.get)();
  (params.*field.member).assign(texts.begin(), texts.end());
}

void CopyIn(const BiasesField& field, const v1::SamplingParams& wire,
            request::SamplingParams& params) {
  auto& biases = params.*field.member;
  for (const auto& [token, bias] : wire.logit_bias()) biases.emplace_back(token, bias);
  // A protobuf map has no order; the value's order must not depend on it.
  std::sort(biases.begin(), biases.end());
}

void CopyIn(const BadWordsField& field, const v1::SamplingParams& wire,
            request::SamplingParams& params) {
  for (const v1::TokenIds& word : wire.bad_words()) {
    (params.*field.member).emplace_back(word.ids().begin(), word.ids().end());
  }
}

template <typename P, typename W, typename M, typename T>
void CopyOut(const ScalarField<P, W, M, T>& field, const P& params, W& wire) {
  if constexpr (std::is_same_v<M, std::optional<T>>) {
    if ((params.*field.member).has_value()) (wire.*field.set)(*(params.*field.member));
  } else {
    (wire.*field.set)(params.*field.member);
  }
}

template <typename P, typename W>
void CopyOut(const TokenIdsField<P, W>& field, const P& params, W& wire) {
  const std::vector<TokenId>& tokens = params.*field.member;
  (wire.*field.mutate)()->Add(tokens.begin(), tokens.end());
}

void CopyOut(const TextsField& field, const request::StopParams& params, v1::StopParams& wire) {
  const std::vector<std::string>& texts = params.*field.member;
  (wire.*field.mutate)()->Add(texts.begin(), texts.end());
}

void CopyOut(const BiasesField& field, const request::SamplingParams& params,
             v1::SamplingParams& wire) {
  for (const auto& [token, bias] : params.*field.member) {
    (*wire.mutable_logit_bias())[token] = bias;
  }
}

void CopyOut(const BadWordsField& field, const request::SamplingParams& params,
             v1::SamplingParams& wire) {
  for (const std::vector<TokenId>& word : params.*field.member) {
    wire.add_bad_words()->mutable_ids()->Add(word.begin(), word.end());
  }
}

template <typename Params, typename Message>
Params ParamsOf(const Message& wire) {
  Params params;
  ForEachWireField([&](const request::Description&, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<typename Field::message_type, Message>) {
      CopyIn(field, wire, params);
    }
  });
  return params;
}

template <typename Message, typename Params>
Message MessageOf(const Params& params) {
  Message wire;
  ForEachWireField([&](const request::Description&, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<typename Field::message_type, Message>) {
      CopyOut(field, params, wire);
    }
  });
  return wire;
}

}  // namespace

request::SamplingParams FromWire(const v1::SamplingParams& wire) {
  auto params = ParamsOf<request::SamplingParams>(wire);
  if (params.top_k == -1) params.top_k = 0;  // both mean "off"
  return params;
}

request::StopParams FromWire(const v1::StopParams& wire) {
  return ParamsOf<request::StopParams>(wire);
}

v1::SamplingParams ToWire(const request::SamplingParams& params) {
  return MessageOf<v1::SamplingParams>(params);
}

v1::StopParams ToWire(const request::StopParams& params) {
  return MessageOf<v1::StopParams>(params);
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

v1::QueueOrder ToWire(request::QueueOrder order) {
  switch (order) {
    case request::QueueOrder::kArrival:
      return v1::QUEUE_ORDER_FCFS;
    case request::QueueOrder::kShortestPrompt:
      return v1::QUEUE_ORDER_SHORTEST_PROMPT;
    case request::QueueOrder::kPriority:
      break;
  }
  return v1::QUEUE_ORDER_PRIORITY;
}

request::QueueOrder FromWire(v1::QueueOrder order) {
  if (order == v1::QUEUE_ORDER_FCFS) return request::QueueOrder::kArrival;
  if (order == v1::QUEUE_ORDER_SHORTEST_PROMPT) return request::QueueOrder::kShortestPrompt;
  return request::QueueOrder::kPriority;
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
