#include "router/front_end/http/completion_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/request_fields.h"

namespace tandem::router {
namespace {

constexpr size_t kPromptsMax = 1024;
// More sequences would not fit into a router's queue by its default.
constexpr int64_t kBatchSequencesMax = 8192;
// What the prompts of a batch share, such as a grammar, counts once for each.
constexpr int64_t kBatchBytesMax = int64_t{64} << 20;
constexpr int32_t kMaxTokensDefault = 16;  // OpenAI's

v1::GenerateRequest WithText(const v1::GenerateRequest& base, std::string text) {
  v1::GenerateRequest request = base;
  request.set_text(std::move(text));
  return request;
}

absl::StatusOr<v1::GenerateRequest> WithTokens(const v1::GenerateRequest& base, const Json& list,
                                               const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(list, path));
  v1::GenerateRequest request = base;
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

// Bounds what a batch costs before its requests are made.
absl::Status CheckBatch(int64_t prompts, const v1::GenerateRequest& base) {
  int64_t sequences = base.has_best_of() ? base.best_of() : base.has_n() ? base.n() : 1;
  if (base.has_beam_search()) sequences = base.beam_search().width();
  if (prompts * sequences > kBatchSequencesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", prompts, " prompts of ", sequences, " sequences each are ", prompts * sequences,
        " sequences, expected at most ", kBatchSequencesMax, " in one request"));
  }
  const auto bytes = static_cast<int64_t>(base.ByteSizeLong());
  if (prompts * bytes > kBatchBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt: ", prompts, " prompts with parameters of ", bytes, " bytes take ", prompts * bytes,
        " bytes, expected at most ", kBatchBytesMax, " in one request"));
  }
  return absl::OkStatus();
}

// A string, a list of strings, a list of token ids, or a list of such lists.
absl::Status ReadPrompts(Fields& fields, const v1::GenerateRequest& base, ApiRequest& api) {
  const Json* prompt = fields.Any("prompt");
  constexpr absl::string_view kExpected =
      "prompt: expected a string, a list of strings, a list of token ids or a list of such lists";
  if (prompt == nullptr) return absl::InvalidArgumentError(absl::StrCat(kExpected, ", got none"));
  if (prompt->is_string()) {
    api.requests.push_back(WithText(base, prompt->get<std::string>()));
    return absl::OkStatus();
  }
  if (!IsList(*prompt) || prompt->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kExpected, ", got ", prompt->is_array() ? "an empty list" : TypeName(*prompt)));
  }
  if (IsPackedIds(*prompt) || NumberIn(prompt->front()).has_value()) {
    ASSIGN_OR_RETURN(auto request, WithTokens(base, *prompt, "prompt"));
    api.requests.push_back(std::move(request));
    return absl::OkStatus();
  }
  if (prompt->size() > kPromptsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt: ", prompt->size(), " prompts, expected at most ", kPromptsMax));
  }
  RETURN_IF_ERROR(CheckBatch(static_cast<int64_t>(prompt->size()), base));
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& item = (*prompt)[i];
    const std::string path = absl::StrCat("prompt[", i, "]");
    if (item.is_string()) {
      api.requests.push_back(WithText(base, item.get<std::string>()));
    } else if (IsList(item)) {
      ASSIGN_OR_RETURN(auto request, WithTokens(base, item, path));
      api.requests.push_back(std::move(request));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", TypeName(item), ", expected a string or a list of token ids"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiRequest> ReadCompletion(const Json& body, bool strict) {
  ApiRequest api;
  api.kind = ApiKind::kCompletion;
  v1::GenerateRequest base;
  Fields fields(body);
  ReadSharedFields(fields, api, base);
  // llama.cpp's name for it may say that there is no limit.
  if (!base.stop().has_max_tokens() && fields.Any("n_predict") == nullptr)
    base.mutable_stop()->set_max_tokens(kMaxTokensDefault);
  if (base.sampling().has_logprobs()) api.logprobs = base.sampling().logprobs();
  api.echo = fields.Bool("echo").value_or(false);
  base.set_echo(api.echo);
  api.keep_special_tokens = base.keep_special_tokens();
  if (api.echo && api.logprobs.has_value()) {
    if (base.has_prompt_logprobs() && base.prompt_logprobs() != *api.logprobs) {
      fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("prompt_logprobs: ", base.prompt_logprobs(), ", expected ", *api.logprobs,
                       " as in logprobs, which is given with echo")));
    }
    base.set_prompt_logprobs(*api.logprobs);
    api.field_names.emplace_back("prompt_logprobs", "logprobs");
    base.set_return_prompt_token_ids(true);
  }
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadPrompts(fields, base, api));
  if (api.requests.size() > 1) {
    // One id cannot name several requests.
    for (v1::GenerateRequest& request : api.requests) request.clear_request_id();
  }
  RETURN_IF_ERROR(fields.Finish(strict));
  return api;
}

}  // namespace tandem::router
