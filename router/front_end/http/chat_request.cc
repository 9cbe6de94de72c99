#include "router/front_end/http/chat_request.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/guided/compile.h"
#include "common/request/sampling_params.h"
#include "router/front_end/http/chat_messages.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/request_fields.h"
#include "router/front_end/http/tool_schema.h"

namespace tandem::router {
namespace {

absl::Status ReadNamedTool(const Json& choice, const Json& tools, ApiRequest& api,
                           v1::GenerateRequest& request) {
  Fields members(choice, "tool_choice");
  const std::string type = members.String("type").value_or("function");
  RETURN_IF_ERROR(members.status());
  if (type != "function") {
    return absl::UnimplementedError(
        absl::StrCat("tool_choice.type: ", ShownInQuotes(type), ", expected \"function\""));
  }
  const auto function = choice.find("function");
  const Json name = function != choice.end() && function->is_object() && function->contains("name")
                        ? (*function)["name"]
                        : Json();
  for (const Json& tool : tools) {
    if (tool["function"]["name"] != name) continue;
    api.tool_mode = ToolMode::kNamed;
    api.tool_name = name.get<std::string>();
    request.mutable_guided()->set_json_schema(JsonText(ParametersOf(tool)));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tool_choice.function.name: ", Shown(JsonText(name)),
                   ", expected the name of one of the tools"));
}

absl::Status CheckMayConstrain(const Json& tools) {
  if (tools.size() <= kConstrainingToolsMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tools: ", tools.size(), " tools, expected at most ", kConstrainingToolsMax,
      " where the tool_choice demands a call of any, or beside a JSON form of the answer"));
}

// Lets an answer that must be JSON consist of calls instead, whose marks are no JSON. Of a regular
// expression or a grammar the client may have made calls a part.
absl::Status AllowCalls(const Json& tools, bool parallel, v1::GenerateRequest& request) {
  const v1::GuidedDecoding& given = request.guided();
  if (!given.has_json_schema() && !given.has_json_object()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckMayConstrain(tools));
  const absl::string_view given_schema = absl::StripAsciiWhitespace(given.json_schema());
  // "true" suits every value.
  const std::string schema(given.has_json_object()  ? R"({"type": "object"})"
                           : given_schema == "true" ? "{}"
                                                    : given_schema);
  // One that is too large, or no object, is refused as it is.
  if (schema.size() > guided::kSourceBytesMax || JsonObjectSize(schema) != schema.size())
    return absl::OkStatus();
  request.mutable_guided()->set_grammar(GrammarOfValueOrCalls(schema, tools, parallel));
  return absl::OkStatus();
}

absl::Status ReadTools(Fields& fields, ApiRequest& api, v1::GenerateRequest& request) {
  const Json* tools = fields.Any("tools");
  const Json* choice = fields.Any("tool_choice");
  api.parallel_calls = fields.Bool("parallel_tool_calls").value_or(true);
  if (tools != nullptr) RETURN_IF_ERROR(CheckTools(fields, *tools));
  const bool some = tools != nullptr && !tools->empty();
  if (choice == nullptr || *choice == "auto") {
    api.tool_mode = some ? ToolMode::kAuto : ToolMode::kNone;
    return some ? AllowCalls(*tools, api.parallel_calls, request) : absl::OkStatus();
  }
  if (*choice == "none") return absl::OkStatus();
  if (*choice != "required" && !choice->is_object()) {
    fields.Fault("tool_choice", "\"none\", \"auto\", \"required\" or a function's name");
    return fields.status();
  }
  if (!some) return absl::InvalidArgumentError("tool_choice: given without tools");
  if (request.has_guided()) {
    return absl::InvalidArgumentError(
        "tool_choice: the tool's arguments constrain the answer, expected no other constraint");
  }
  if (choice->is_object()) return ReadNamedTool(*choice, *tools, api, request);
  RETURN_IF_ERROR(CheckMayConstrain(*tools));
  api.tool_mode = ToolMode::kRequired;
  request.mutable_guided()->set_json_schema(JsonText(SchemaOfCalls(*tools, api.parallel_calls)));
  return absl::OkStatus();
}

void ReadLogprobs(Fields& fields, ApiRequest& api, v1::GenerateRequest& request) {
  const bool logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", {0, request::kLogprobsMax});
  if (logprobs) {
    api.logprobs = static_cast<int32_t>(top.value_or(0));
    request.mutable_sampling()->set_logprobs(*api.logprobs);
  } else if (top.has_value() && *top > 0) {
    fields.Keep(absl::InvalidArgumentError(
        "top_logprobs: given without logprobs, expected \"logprobs\": true beside it"));
  }
}

// Names the tools where it is they that constrain the answer.
void NameConstraintOfTools(const Json* tools, ApiRequest& api) {
  if (api.tool_mode == ToolMode::kRequired) api.field_names.emplace_back("guided", "tools");
  if (api.tool_mode != ToolMode::kNamed) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    if ((*tools)[i]["function"]["name"] != api.tool_name) continue;
    api.field_names.emplace_back("guided", absl::StrCat("tools[", i, "]"));
    return;
  }
}

}  // namespace

absl::StatusOr<ApiRequest> ReadChat(const Json& body, const ModelAssets& assets, absl::Time now,
                                    bool strict) {
  ApiRequest api;
  api.kind = ApiKind::kChat;
  v1::GenerateRequest request;
  Fields fields(body);
  ReadSharedFields(fields, api, request);
  ReadLogprobs(fields, api, request);
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadTools(fields, api, request));
  NameConstraintOfTools(fields.Any("tools"), api);
  api.field_names.emplace_back("prompt", "messages");
  const bool no_tools = api.tool_mode == ToolMode::kNone;
  ASSIGN_OR_RETURN(const std::string text, RenderMessages(fields, assets, now, !no_tools));
  api.chat_turn = !fields.Bool("continue_final_message").value_or(false);
  const bool special = fields.Bool("add_special_tokens").value_or(false);
  RETURN_IF_ERROR(fields.Finish(strict));
  if (!api.truncate_prompt_tokens.has_value() &&
      static_cast<int64_t>(text.size()) > assets.prompt_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("messages: ", text.size(), " bytes as a prompt, expected at most ",
                     assets.prompt_bytes_max, ", the context of ", assets.identity.served_name()));
  }
  // The template wrote the special tokens.
  const std::vector<TokenId> ids =
      assets.tokenizer->Encode(text, {.add_special_tokens = special, .parse_special = true});
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  api.requests.push_back(std::move(request));
  return api;
}

}  // namespace tandem::router
