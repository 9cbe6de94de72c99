#include "router/front_end/http/chat_messages.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

// A message's text: a string, or parts of type "text" joined by line ends; an assistant's parts may
// be refusals, too.
absl::Status ReadContent(const Json& content, const std::string& path, Json& message) {
  if (content.is_string() || content.is_null()) {
    message["content"] = content;
    return absl::OkStatus();
  }
  if (!content.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TypeName(content), ", expected a string or a list of text parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    if (!content[i].is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(part_path, ": ", TypeName(content[i]), ", expected an object"));
    }
    Fields part(content[i], part_path);
    const std::string type = part.String("type").value_or("");
    const bool refusal = type == "refusal" && message["role"] == "assistant";
    if (!refusal && type != "text") {
      part.Fault("type", "\"text\": this model reads nothing else");
    }
    const auto piece = part.String(refusal ? "refusal" : "text");
    if (part.status().ok() && !piece.has_value()) {
      part.Fault(refusal ? "refusal" : "text", "a string");
    }
    RETURN_IF_ERROR(part.status());
    absl::StrAppend(&text, i == 0 ? "" : "\n", *piece);
  }
  message["content"] = std::move(text);
  return absl::OkStatus();
}

// Templates expect a call's arguments as an object; OpenAI's API sends them as text.
absl::Status ReadToolCalls(Fields& fields, Json& message) {
  const Json* calls = fields.Any("tool_calls");
  if (calls == nullptr) return absl::OkStatus();
  if (!calls->is_array()) {
    fields.Fault("tool_calls", "a list");
    return fields.status();
  }
  Json copies = Json::array();
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string path = absl::StrCat(fields.PathOf("tool_calls"), "[", i, "]");
    Json call = (*calls)[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("name") || !call["function"]["name"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".function: expected an object with a name"));
    }
    Json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) {
      arguments = ParseArguments(arguments.get<std::string>());
    } else if (!arguments.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".function.arguments: expected a JSON object as a string"));
    }
    copies.push_back(std::move(call));
  }
  if (!copies.empty()) message["tool_calls"] = std::move(copies);
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadMessage(const Json& object, const std::string& path) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TypeName(object), ", expected an object"));
  }
  Fields fields(object, path);
  Json message = Json::object();
  const std::string role = fields.String("role").value_or("");
  if (role != "system" && role != "developer" && role != "user" && role != "assistant" &&
      role != "tool") {
    fields.Fault("role", "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"");
  }
  // Templates call a developer by the older name, system.
  message["role"] = role == "developer" ? "system" : role;
  RETURN_IF_ERROR(fields.status());
  const Json* content = fields.Any("content");
  // An assistant's message may consist of a refusal or of calls alone, or be empty.
  if (content == nullptr && role == "assistant" && fields.String("refusal").has_value()) {
    content = fields.Any("refusal");
  }
  if (content == nullptr && role != "assistant") {
    fields.Fault("content", "a string or a list of text parts");
    return fields.status();
  }
  RETURN_IF_ERROR(
      ReadContent(content == nullptr ? Json("") : *content, fields.PathOf("content"), message));
  for (const absl::string_view name : {"name", "tool_call_id", "reasoning_content"}) {
    if (auto value = fields.String(name)) message[std::string(name)] = *std::move(value);
  }
  if (role == "assistant") RETURN_IF_ERROR(ReadToolCalls(fields, message));
  RETURN_IF_ERROR(fields.status());
  return message;
}

// Marks where a continued message ends. The mark consists of noncharacters, which no text contains.
constexpr absl::string_view kEndMark = "\ufdd0\ufdd1";

// The prompt up to the mark; what follows the mark. kInvalidArgument if there is none.
absl::StatusOr<std::pair<std::string, std::string>> CutAtMark(std::string text) {
  const size_t mark = absl::string_view(text).rfind(kEndMark);
  if (mark == std::string::npos) {
    return absl::InvalidArgumentError(
        "continue_final_message: the model's chat template does not write the last message's text");
  }
  std::string behind = text.substr(mark + kEndMark.size());
  text.resize(mark);
  return std::make_pair(std::move(text), std::move(behind));
}

// The prompt up to the end of the last message, which the answer continues.
absl::StatusOr<std::string> RenderContinued(const ModelAssets& assets,
                                            model::ChatTemplate::RenderInput input,
                                            absl::Time now) {
  Json& last = input.messages.back();
  if (last["role"] != "assistant" || last.contains("tool_calls")) {
    return absl::InvalidArgumentError(
        "continue_final_message: expected an assistant's message without tool_calls as the last "
        "one");
  }
  std::string content = last["content"].get<std::string>();
  const size_t trimmed_bytes = absl::StripTrailingAsciiWhitespace(content).size();
  if (trimmed_bytes < content.size()) {
    // A template that trims messages removes the space behind the mark, too. It would also remove
    // the blanks that the message ends with, which the mark keeps.
    last["content"] = absl::StrCat(content, kEndMark, " ");
    ASSIGN_OR_RETURN(std::string text, assets.RenderChat(input, now));
    ASSIGN_OR_RETURN(auto prompt, CutAtMark(std::move(text)));
    if (absl::StartsWith(prompt.second, " ")) return std::move(prompt.first);
    content.resize(trimmed_bytes);
  }
  last["content"] = absl::StrCat(content, kEndMark);
  ASSIGN_OR_RETURN(std::string text, assets.RenderChat(std::move(input), now));
  ASSIGN_OR_RETURN(auto prompt, CutAtMark(std::move(text)));
  return std::move(prompt.first);
}

}  // namespace

Json ParseArguments(absl::string_view text) {
  absl::StatusOr<Json> parsed = ParseJsonBody(text, {.takes_last = true});
  return parsed.ok() ? *std::move(parsed) : Json::object();
}

absl::Status CheckTools(Fields& fields, const Json& tools) {
  if (!tools.is_array()) {
    fields.Fault("tools", "a list of tools");
    return fields.status();
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    const Json& tool = tools[i];
    if (!tool.is_object() || tool.value("type", Json()) != Json("function")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".type: expected an object of type \"function\""));
    }
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object() || !function->contains("name") ||
        !(*function)["name"].is_string() || (*function)["name"] == "") {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".function: expected an object with a name"));
    }
    const auto parameters = function->find("parameters");
    if (parameters != function->end() && !parameters->is_object() && !parameters->is_null()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".function.parameters: expected a JSON Schema object"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RenderMessages(Fields& fields, const ModelAssets& assets,
                                           absl::Time now, bool with_tools) {
  const Json* list = fields.Any("messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    fields.Fault("messages", "a list of at least one message");
    return fields.status();
  }
  RETURN_IF_ERROR(assets.CheckMessages(std::ssize(*list)));
  model::ChatTemplate::RenderInput input;
  input.messages = Json::array();
  for (size_t i = 0; i < list->size(); ++i) {
    ASSIGN_OR_RETURN(Json message, ReadMessage((*list)[i], absl::StrCat("messages[", i, "]")));
    input.messages.push_back(std::move(message));
  }
  const Json* tools = fields.Any("tools");
  if (tools != nullptr) RETURN_IF_ERROR(CheckTools(fields, *tools));
  if (with_tools && tools != nullptr && !tools->empty()) input.tools = *tools;
  if (const Json* documents = fields.Any("documents")) {
    if (!documents->is_array()) fields.Fault("documents", "a list");
    input.documents = *documents;
  }
  const bool continues = fields.Bool("continue_final_message").value_or(false);
  input.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(!continues);
  if (continues && input.add_generation_prompt) {
    fields.Keep(absl::InvalidArgumentError(
        "continue_final_message: given together with add_generation_prompt, expected one of them"));
  }
  if (const Json* extra = fields.Object("chat_template_kwargs")) {
    for (const char* name : {"messages", "tools"}) {
      if (!extra->contains(name)) continue;
      fields.Keep(absl::InvalidArgumentError(absl::StrCat(
          "chat_template_kwargs.", name, ": not expected, give it as the member ", name)));
    }
    input.extra = *extra;
  }
  fields.Unserved("chat_template");
  RETURN_IF_ERROR(fields.status());
  if (continues) return RenderContinued(assets, std::move(input), now);
  return assets.RenderChat(std::move(input), now);
}

}  // namespace tandem::router
