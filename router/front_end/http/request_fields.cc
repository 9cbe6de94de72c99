#include "router/front_end/http/request_fields.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/request/request_members.h"
#include "router/front_end/http/guided_fields.h"
#include "router/front_end/http/sampling_fields.h"

namespace tandem::router {
namespace {

constexpr int32_t kChoicesMax = 128;

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
    // best_of equal to n is the default: leave it out.
    if (*value != api.n) request.set_best_of(static_cast<int32_t>(*value));
  }
  const bool beam = fields.Bool("use_beam_search").value_or(false);
  const auto penalty = fields.Number("length_penalty");
  const auto early = fields.Bool("early_stopping");
  if (!beam) return;
  api.field_names.emplace_back("beam_search.width", request.has_best_of() ? "best_of" : "n");
  api.field_names.emplace_back("beam_search.length_penalty", "length_penalty");
  api.field_names.emplace_back("beam_search", "use_beam_search");
  v1::BeamSearch& search = *request.mutable_beam_search();
  search.set_width(request.has_best_of() ? request.best_of() : api.n);
  request.clear_best_of();
  if (penalty.has_value()) search.set_length_penalty(*penalty);
  search.set_early_stopping(early.value_or(false));
}

// llama.cpp's name for max_tokens: -1 and -2 mean what the context holds, as no limit does.
void ReadPredictLimit(Fields& fields, v1::GenerateRequest& request) {
  const auto length = fields.Integer("n_predict", {-2, std::numeric_limits<int32_t>::max()});
  if (!length.has_value()) return;
  request.mutable_stop()->clear_max_tokens();
  if (*length >= 0) request.mutable_stop()->set_max_tokens(static_cast<int32_t>(*length));
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

bool HasPenalty(const v1::SamplingParams& sampling) {
  return (sampling.has_repetition_penalty() && sampling.repetition_penalty() != 1) ||
         sampling.presence_penalty() != 0 || sampling.frequency_penalty() != 0;
}

using OtherMembers = absl::flat_hash_map<absl::string_view, const request::RequestMember*>;

OtherMembers OtherMembersOf(request::Api api) {
  OtherMembers others;
  for (const request::RequestMember& member : request::kRequestMembers) {
    if ((member.apis & api) && member.handling != request::Handling::kServed)
      others[member.name] = &member;
  }
  return others;
}

// Refuses and ignores by the table.
void ReadOtherMembers(Fields& fields, ApiKind kind, const v1::SamplingParams& sampling) {
  static const auto* completions = new OtherMembers(OtherMembersOf(request::kCompletions));
  static const auto* chat = new OtherMembers(OtherMembersOf(request::kChat));
  const OtherMembers& others = kind == ApiKind::kCompletion ? *completions : *chat;
  for (const auto& [name, value] : fields.object().items()) {
    const auto found = others.find(name);
    if (found == others.end()) continue;
    const request::RequestMember& member = *found->second;
    const bool idle = name == "repeat_last_n" && !HasPenalty(sampling);
    if (idle || member.handling == request::Handling::kHarmless) {
      fields.Ignore({member.name});
    } else {
      fields.Refuse(member);
    }
  }
}

}  // namespace

void ReadSharedFields(Fields& fields, ApiRequest& api, v1::GenerateRequest& request) {
  if (const auto model = fields.String("model")) {
    api.model = *model;
    request.set_model(*model);
  }
  if (const auto id = fields.String("request_id")) request.set_request_id(*id);
  const request::Api names =
      api.kind == ApiKind::kCompletion ? request::kCompletions : request::kChat;
  ReadSamplingFields(fields, names, request);
  ReadPredictLimit(fields, request);
  NameAliases(fields, names, api.field_names);
  ReadChoices(fields, api, request);
  ReadStream(fields, api);
  ReadGuided(fields, request, api.field_names);
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
  if (const auto value = fields.String("service_tier")) {
    request.set_service_tier(*value);
    api.tells_tier = true;
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
  fields.Bool("strict");
  ReadOtherMembers(fields, api.kind, request.sampling());
}

void CopyServingFields(Fields& fields, Json& chat) {
  for (const char* name : {"request_id", "priority", "service_tier", "deadline_s", "cache_salt"}) {
    if (const Json* value = fields.Any(name)) chat[name] = *value;
  }
}

}  // namespace tandem::router
