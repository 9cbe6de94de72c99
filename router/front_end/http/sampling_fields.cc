// Sampling, stopping and streaming parameters that both endpoints have.
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "router/front_end/http/api_request.h"

namespace tandem::router {
namespace {

constexpr int32_t kChoicesMax = 128;

void ReadLogitBias(Fields& fields, v1::SamplingParams& sampling) {
  const Json* biases = fields.Object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [name, value] : biases->items()) {
    int32_t token = -1;
    if (!absl::SimpleAtoi(name, &token) || token < 0) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("logit_bias.", name, ": expected a token id for a name")));
    }
    if (!value.is_number()) {
      return fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("logit_bias.", name, ": ", value.type_name(), ", expected a number")));
    }
    (*sampling.mutable_logit_bias())[token] = value.get<float>();
  }
}

// Any 64 bits, written with or without a sign.
void ReadSeed(Fields& fields, v1::SamplingParams& sampling) {
  const Json* seed = fields.Any("seed");
  if (seed != nullptr && seed->is_number_unsigned()) {
    return sampling.set_seed(seed->get<uint64_t>());
  }
  constexpr IntegerRange kAny = {std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max()};
  if (const auto value = fields.Integer("seed", kAny)) {
    sampling.set_seed(static_cast<uint64_t>(*value));
  }
}

void ReadNumbers(Fields& fields, v1::SamplingParams& sampling) {
  if (const auto value = fields.Number("temperature")) sampling.set_temperature(*value);
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(*value);
  if (const auto value = fields.Number("min_p")) sampling.set_min_p(*value);
  if (const auto value = fields.Integer("top_k")) sampling.set_top_k(static_cast<int32_t>(*value));
  if (const auto value = fields.Number("repetition_penalty")) {
    sampling.set_repetition_penalty(*value);
  }
  if (const auto value = fields.Number("presence_penalty")) sampling.set_presence_penalty(*value);
  if (const auto value = fields.Number("frequency_penalty")) {
    sampling.set_frequency_penalty(*value);
  }
  ReadSeed(fields, sampling);
  ReadLogitBias(fields, sampling);
  for (const int32_t id : fields.TokenIds("allowed_token_ids")) {
    sampling.add_allowed_token_ids(id);
  }
}

void ReadStop(Fields& fields, v1::StopParams& stop) {
  for (std::string& text : fields.Strings("stop")) stop.add_stop(std::move(text));
  for (const int32_t id : fields.TokenIds("stop_token_ids")) stop.add_stop_token_ids(id);
  if (const auto value = fields.Integer("min_tokens")) {
    stop.set_min_tokens(static_cast<int32_t>(*value));
  }
  stop.set_ignore_eos(fields.Bool("ignore_eos").value_or(false));
  stop.set_include_stop_str_in_output(fields.Bool("include_stop_str_in_output").value_or(false));
}

void ReadChoices(Fields& fields, ApiRequest& api, v1::GenerateRequest& request) {
  if (const auto value = fields.Integer("n", {1, kChoicesMax})) {
    api.n = static_cast<int32_t>(*value);
    request.set_n(api.n);
  }
  if (const auto value = fields.Integer("best_of", {1, kChoicesMax})) {
    if (*value < api.n) {
      fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("best_of: ", *value, ", expected at least n = ", api.n)));
    }
    // The default, given or not, means the same.
    if (*value != api.n) request.set_best_of(static_cast<int32_t>(*value));
  }
  const bool beam = fields.Bool("use_beam_search").value_or(false);
  const auto penalty = fields.Number("length_penalty");
  const auto early = fields.Bool("early_stopping");
  if (!beam) return;
  v1::BeamSearch& search = *request.mutable_beam_search();
  search.set_width(request.has_best_of() ? request.best_of() : api.n);
  request.clear_best_of();
  if (penalty.has_value()) search.set_length_penalty(*penalty);
  search.set_early_stopping(early.value_or(false));
}

void ReadStream(Fields& fields, ApiRequest& api) {
  api.stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Object("stream_options");
  if (options == nullptr) return;
  if (!api.stream) {
    return fields.Keep(absl::InvalidArgumentError(
        "stream_options: given without stream, expected \"stream\": true beside it"));
  }
  Fields members(*options, "stream_options");
  api.include_usage = members.Bool("include_usage").value_or(false);
  api.continuous_usage = members.Bool("continuous_usage_stats").value_or(false);
  fields.Keep(members.status());
}

}  // namespace

void ReadSampling(Fields& fields, ApiRequest& api, v1::GenerateRequest& request) {
  if (const auto model = fields.String("model")) {
    api.model = *model;
    request.set_model(*model);
  }
  if (const auto id = fields.String("request_id")) request.set_request_id(*id);
  ReadNumbers(fields, *request.mutable_sampling());
  ReadStop(fields, *request.mutable_stop());
  ReadChoices(fields, api, request);
  ReadStream(fields, api);
  ReadGuided(fields, request);
  for (std::string& word : fields.Strings("bad_words")) request.add_bad_words(std::move(word));
  request.set_keep_special_tokens(!fields.Bool("skip_special_tokens").value_or(true));
  if (const auto value = fields.Integer("prompt_logprobs")) {
    request.set_prompt_logprobs(static_cast<int32_t>(*value));
    if (api.stream) {
      fields.Keep(absl::InvalidArgumentError(
          "prompt_logprobs: given with stream, expected a whole answer"));
    }
  }
  if (const auto value = fields.Integer("priority")) {
    request.set_priority(static_cast<int32_t>(*value));
  }
  if (const auto value = fields.Number("deadline_s")) request.set_deadline_s(*value);
  if (const auto value = fields.String("cache_salt")) request.set_cache_salt(*value);
  api.return_token_ids = fields.Bool("return_token_ids").value_or(false);
  api.tokens_as_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  api.timing = fields.Bool("timing").value_or(false);
  request.set_return_gaps(api.timing);
  // The usage so far counts tokens.
  request.set_return_token_ids(api.return_token_ids || api.continuous_usage);
  request.set_return_prompt_token_ids(api.return_token_ids);
  if (const auto value = fields.Integer("truncate_prompt_tokens")) {
    if (*value < 1 && *value != -1) fields.Fault("truncate_prompt_tokens", "-1 or at least 1");
    api.truncate_prompt_tokens = static_cast<int32_t>(*value);
  }
  fields.Unserved("logits_processors");
  // These say who asks, or where an answer is kept elsewhere: nothing here depends on them.
  fields.Ignore({"strict", "user", "metadata", "store", "service_tier", "prompt_cache_key",
                 "safety_identifier", "spaces_between_special_tokens", "detokenize",
                 "guided_decoding_backend", "guided_whitespace_pattern"});
}

}  // namespace tandem::router
