#include "router/front_end/http/sampling_fields.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/rpc/wire_fields.h"

namespace tandem::router {
namespace {

// The seed: any 64 bits, written with or without a sign. -1 is none, as vLLM, llama.cpp and Ollama
// mean it: the router draws one.
std::optional<uint64_t> ReadBits(Fields& fields, absl::string_view name) {
  const Json* value = fields.Any(name);
  if (value != nullptr && value->is_number_unsigned()) return value->get<uint64_t>();
  if (value != nullptr && IsLargeInteger(*value)) {
    fields.Fault(name, "a whole number of 64 bits");
    return std::nullopt;
  }
  constexpr IntegerRange kAny = {std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max()};
  const std::optional<int64_t> number = fields.Integer(name, kAny);
  if (!number.has_value() || *number == -1) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

// ReadField has one overload for each kind of field in rpc::kWireFields.

template <typename P, typename W, typename M, typename T>
void ReadField(const rpc::ScalarField<P, W, M, T>& field, Fields& fields, absl::string_view name,
               v1::GenerateRequest& request) {
  W& message = rpc::PartOf<rpc::ScalarField<P, W, M, T>>(request);
  if constexpr (std::is_same_v<T, bool>) {
    if (const auto value = fields.Bool(name)) (message.*field.set)(*value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    if (const auto value = ReadBits(fields, name)) (message.*field.set)(*value);
  } else if constexpr (std::is_integral_v<T>) {
    if (const auto value = fields.Integer(name)) (message.*field.set)(static_cast<T>(*value));
  } else {
    if (const auto value = fields.Number(name)) (message.*field.set)(*value);
  }
}

template <typename P, typename W>
void ReadField(const rpc::TokenIdsField<P, W>& field, Fields& fields, absl::string_view name,
               v1::GenerateRequest& request) {
  const std::vector<int32_t> ids = fields.TokenIds(name);
  // No tokens are other than all of them, which the request's empty list of allowed ones means.
  const Json* list = fields.Any(name);
  if (std::is_same_v<W, v1::SamplingParams> && list != nullptr && IsList(*list) && list->empty()) {
    return fields.Keep(absl::InvalidArgumentError(
        absl::StrCat(fields.PathOf(name), ": an empty list, expected at least one token id")));
  }
  W& message = rpc::PartOf<rpc::TokenIdsField<P, W>>(request);
  (message.*field.mutate)()->Add(ids.begin(), ids.end());
}

void ReadField(const rpc::TextsField& field, Fields& fields, absl::string_view name,
               v1::GenerateRequest& request) {
  auto& texts = *(request.mutable_stop()->*field.mutate)();
  for (std::string& text : fields.Strings(name)) *texts.Add() = std::move(text);
}

// As OpenAI's API writes them: {"15043": 1.5}.
void ReadBiasMembers(Fields& fields, absl::string_view name, const Json& biases,
                     google::protobuf::Map<int32_t, float>& out) {
  for (const auto& [key, value] : biases.items()) {
    int32_t token = -1;
    if (!absl::SimpleAtoi(key, &token) || token < 0) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat(name, ".", Shown(key), ": expected a token id for a name")));
    }
    const std::optional<double> bias = NumberIn(value);
    if (!bias.has_value()) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat(name, ".", Shown(key), ": ", TypeName(value), ", expected a number")));
    }
    out[token] = static_cast<float>(*bias);
  }
}

// As llama.cpp writes them: [[15043, 1.5]].
void ReadBiasPairs(Fields& fields, absl::string_view name, const Json& biases,
                   google::protobuf::Map<int32_t, float>& out) {
  for (size_t i = 0; i < biases.size(); ++i) {
    const Json& pair = biases[i];
    const bool is_pair = pair.is_array() && pair.size() == 2;
    const std::optional<double> token = is_pair ? NumberIn(pair[0]) : std::nullopt;
    const std::optional<double> bias = is_pair ? NumberIn(pair[1]) : std::nullopt;
    const bool is_id = token.has_value() && *token >= 0 && *token == std::floor(*token) &&
                       *token <= std::numeric_limits<int32_t>::max();
    if (!is_id || !bias.has_value()) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat(name, "[", i, "]: expected a token id and a number, such as [15043, 1.5]")));
    }
    const auto id = static_cast<int32_t>(*token);
    if (!out.insert({id, static_cast<float>(*bias)}).second) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat(name, "[", i, "]: token ", id, " again, expected each token once")));
    }
  }
}

void ReadField(const rpc::BiasesField&, Fields& fields, absl::string_view name,
               v1::GenerateRequest& request) {
  const Json* biases = fields.Any(name);
  if (biases == nullptr) return;
  auto& out = *request.mutable_sampling()->mutable_logit_bias();
  if (biases->is_object()) return ReadBiasMembers(fields, name, *biases, out);
  if (biases->is_array()) return ReadBiasPairs(fields, name, *biases, out);
  fields.Fault(name, "an object with a number for each token id, or a list of pairs of both");
}

// Texts here; the router makes token ids of them (router/front_end/bad_words.h).
void ReadField(const rpc::BadWordsField&, Fields& fields, absl::string_view name,
               v1::GenerateRequest& request) {
  for (std::string& word : fields.Strings(name)) request.add_bad_words(std::move(word));
}

}  // namespace

void ReadSamplingFields(Fields& fields, request::Api api, v1::GenerateRequest& request) {
  // Both parts are in every request that comes over HTTP.
  request.mutable_sampling();
  request.mutable_stop();
  rpc::ForEachWireField([&](const request::Description& about, const auto& field) {
    if (about.apis & api) ReadField(field, fields, about.name, request);
    for (const request::Alias& alias : about.aliases) {
      // Read after the name, so that its value replaces the name's.
      if ((alias.apis & api) && !alias.own_reader) ReadField(field, fields, alias.name, request);
    }
  });
}

void NameAliases(const Fields& fields, request::Api api, FieldNames& names) {
  const Json& object = fields.object();
  request::ForEachParameter([&](const auto& row) {
    for (const request::Alias& alias : row.about.aliases) {
      if (!(alias.apis & api)) continue;
      const auto given = object.find(alias.name);
      if (given != object.end() && !given->is_null())
        names.emplace_back(row.about.name, alias.name);
    }
  });
}

void CopySamplingFields(Fields& fields, request::Api api, Json& chat) {
  request::ForEachParameter([&](const auto& row) {
    const auto copy = [&](absl::string_view name) {
      if (const Json* value = fields.Any(name)) chat[std::string(row.about.name)] = *value;
    };
    if (row.about.apis & api) copy(row.about.name);
    for (const request::Alias& alias : row.about.aliases) {
      if ((alias.apis & api) && !alias.own_reader) copy(alias.name);
    }
  });
}

}  // namespace tandem::router
