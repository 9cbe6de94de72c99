#include "router/front_end/http/anthropic_request.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "router/core/service_tier.h"
#include "router/front_end/http/anthropic_messages.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/request_fields.h"
#include "router/front_end/http/sampling_fields.h"
#include "router/front_end/request_validation.h"

namespace tandem::router {
namespace {

absl::Status ReadConversation(Fields& fields, Json& chat) {
  AnthropicMessages messages;
  if (const Json* system = fields.Any("system")) RETURN_IF_ERROR(messages.AddSystem(*system));
  const Json* list = fields.Any("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.Fault("messages", "a list of at least one message");
    return fields.status();
  }
  for (size_t i = 0; i < list->size(); ++i) {
    RETURN_IF_ERROR(messages.Add((*list)[i], absl::StrCat("messages[", i, "]")));
  }
  if (messages.continues()) chat["continue_final_message"] = true;
  chat["messages"] = messages.Take();
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadTool(const Json& object, const std::string& path) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TypeName(object), ", expected an object"));
  }
  Fields tool(object, path);
  const std::string type = tool.String("type").value_or("custom");
  RETURN_IF_ERROR(tool.status());
  if (type != "custom") {
    return absl::UnimplementedError(absl::StrCat(path, ".type: ", ShownInQuotes(type),
                                                 ", expected \"custom\": this router has no ",
                                                 "tools of its own"));
  }
  const std::string name = tool.String("name").value_or("");
  if (name.empty()) tool.Fault("name", "a tool's name");
  Json function = {{"name", name}};
  if (auto text = tool.String("description")) function["description"] = *std::move(text);
  const Json* schema = tool.Object("input_schema");
  if (schema == nullptr) {
    tool.Fault("input_schema", "a JSON Schema as an object");
  } else {
    function["parameters"] = *schema;
  }
  RETURN_IF_ERROR(tool.status());
  return Json{{"type", "function"}, {"function", std::move(function)}};
}

absl::Status ReadTools(Fields& fields, Json& chat) {
  const Json* tools = fields.Any("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) {
    fields.Fault("tools", "a list of tools");
    return fields.status();
  }
  Json& list = chat["tools"] = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(Json tool, ReadTool((*tools)[i], absl::StrCat("tools[", i, "]")));
    list.push_back(std::move(tool));
  }
  return absl::OkStatus();
}

absl::Status ReadToolChoice(Fields& fields, Json& chat) {
  const Json* object = fields.Object("tool_choice");
  if (object == nullptr) return fields.status();
  Fields choice(*object, "tool_choice");
  const std::string type = choice.String("type").value_or("");
  if (type == "tool") {
    const auto name = choice.String("name");
    if (choice.status().ok() && !name.has_value()) choice.Fault("name", "a tool's name");
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", name.value_or("")}}}};
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else {
    choice.Fault("type", "\"auto\", \"any\", \"tool\" or \"none\"");
  }
  chat["parallel_tool_calls"] = !choice.Bool("disable_parallel_tool_use").value_or(false);
  return choice.status();
}

absl::Status ReadOutputConfig(Fields& fields, Json& chat) {
  const Json* object = fields.Object("output_config");
  if (object == nullptr) return fields.status();
  Fields config(*object, "output_config");
  const Json* format = config.Object("format");
  RETURN_IF_ERROR(config.status());
  if (format == nullptr) return absl::OkStatus();
  Fields members(*format, "output_config.format");
  if (members.String("type").value_or("") != "json_schema") {
    members.Fault("type", "\"json_schema\"");
  }
  const Json* schema = members.Object("schema");
  if (schema == nullptr) {
    members.Fault("schema", "a JSON Schema as an object");
  } else {
    chat["guided_json"] = *schema;
  }
  return members.status();
}

// Refuses fields that would change the answer, and accepts those without an effect.
absl::Status ReadUnservedFields(Fields& fields) {
  if (const Json* object = fields.Object("thinking")) {
    Fields thinking(*object, "thinking");
    const std::string type = thinking.String("type").value_or("");
    RETURN_IF_ERROR(thinking.status());
    if (type != "disabled") {
      return absl::UnimplementedError(
          absl::StrCat("thinking.type: ", ShownInQuotes(type), ", expected \"disabled\""));
    }
  }
  for (const char* name : {"container", "mcp_servers", "context_management", "output_format"}) {
    fields.Unserved(name);
  }
  fields.Bool("strict");
  fields.Ignore({"metadata", "cache_control", "speed", "inference_geo", "diagnostics",
                 "user_profile_id", "workspace_id"});
  return fields.status();
}

}  // namespace

absl::Status ToAnthropicFieldNames(const absl::Status& status) {
  if (const auto excess = status.GetPayload(kContextExcessPayload); excess.has_value()) {
    const std::vector<std::string> tokens = absl::StrSplit(std::string(*excess), ' ');
    if (tokens.size() == 2) {
      return absl::Status(status.code(), absl::StrCat("prompt is too long: ", tokens[0],
                                                      " tokens > ", tokens[1], " maximum"));
    }
    return absl::Status(
        status.code(),
        absl::StrCat("input length and `max_tokens` exceed context limit: ",
                     absl::StrJoin(tokens.begin(), tokens.end() - 1, " + "), " > ", tokens.back(),
                     ", decrease input length or `max_tokens` and try again"));
  }
  static const auto* const names =
      new FieldNames{{"stop", "stop_sequences"},
                     {"guided_json", "output_config.format.schema"},
                     {"continue_final_message", "messages"},
                     {"prompt", "messages"},
                     {"tool_choice.function.name", "tool_choice.name"}};
  return RenameField(status, *names);
}

absl::StatusOr<ApiRequest> ReadAnthropic(const Json& body, const ModelAssets& assets,
                                         const AnthropicReading& reading) {
  Fields fields(body);
  Json chat = Json::object();
  for (const char* name : {"model", "stream"}) {
    if (const Json* value = fields.Any(name)) chat[name] = *value;
  }
  CopyServingFields(fields, chat);
  // Anthropic's name for its default tier.
  if (const auto tier = chat.find("service_tier"); tier != chat.end() && *tier == "standard_only")
    *tier = kDefaultTier;
  CopySamplingFields(fields, request::kMessages, chat);
  constexpr IntegerRange kPositive = {1, std::numeric_limits<int32_t>::max()};
  if (!fields.Integer("max_tokens", kPositive).has_value() && !reading.counts_only) {
    fields.Fault("max_tokens", "a whole number of at least 1");
  }
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadUnservedFields(fields));
  RETURN_IF_ERROR(ReadTools(fields, chat));
  RETURN_IF_ERROR(ReadToolChoice(fields, chat));
  RETURN_IF_ERROR(ReadOutputConfig(fields, chat));
  RETURN_IF_ERROR(ReadConversation(fields, chat));
  RETURN_IF_ERROR(fields.Finish(reading.strict));
  absl::StatusOr<ApiRequest> api = ReadChat(chat, assets, reading.now, /*strict=*/false);
  if (!api.ok()) return ToAnthropicFieldNames(api.status());
  api->kind = ApiKind::kMessage;
  return api;
}

}  // namespace tandem::router
