#include "router/front_end/http/anthropic_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/json_fields.h"

namespace tandem::router {
namespace {

absl::Status NotServed(const std::string& path, const std::string& type,
                       absl::string_view expected) {
  return absl::UnimplementedError(
      absl::StrCat(path, ".type: ", ShownInQuotes(type), ", expected ", expected));
}

absl::Status CheckObject(const Json& block, const std::string& path) {
  if (block.is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", TypeName(block), ", expected an object"));
}

absl::StatusOr<std::string> TypeOf(const Json& block, const std::string& path) {
  RETURN_IF_ERROR(CheckObject(block, path));
  Fields fields(block, path);
  const auto type = fields.String("type");
  if (fields.status().ok() && !type.has_value()) fields.Fault("type", "a block's type");
  RETURN_IF_ERROR(fields.status());
  return *type;
}

absl::StatusOr<std::string> TextOf(const Json& block, const std::string& path) {
  Fields fields(block, path);
  const auto text = fields.String("text");
  if (fields.status().ok() && !text.has_value()) fields.Fault("text", "a string");
  RETURN_IF_ERROR(fields.status());
  return *text;
}

// A text, or blocks of text joined by line ends, as a chat joins its parts.
absl::StatusOr<std::string> ReadTexts(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TypeName(content), ", expected a string or a list of blocks"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string block_path = absl::StrCat(path, "[", i, "]");
    ASSIGN_OR_RETURN(const std::string type, TypeOf(content[i], block_path));
    if (type != "text") {
      return NotServed(block_path, type, "\"text\": this model reads nothing else");
    }
    ASSIGN_OR_RETURN(const std::string piece, TextOf(content[i], block_path));
    absl::StrAppend(&text, i == 0 ? "" : "\n", piece);
  }
  return text;
}

// In place: a message may have many blocks.
void AppendText(const std::string& text, Json& message) {
  Json& content = message["content"];
  if (content.is_null()) {
    content = text;
  } else {
    absl::StrAppend(&content.get_ref<std::string&>(), "\n", text);
  }
}

}  // namespace

absl::Status AnthropicMessages::AddSystem(const Json& system) {
  ASSIGN_OR_RETURN(std::string text, ReadTexts(system, "system"));
  messages_.push_back({{"role", "system"}, {"content", std::move(text)}});
  return absl::OkStatus();
}

absl::Status AnthropicMessages::Add(const Json& object, const std::string& path) {
  RETURN_IF_ERROR(CheckObject(object, path));
  Fields fields(object, path);
  const std::string role = fields.String("role").value_or("");
  if (role != "user" && role != "assistant") fields.Fault("role", "\"user\" or \"assistant\"");
  const Json* content = fields.Any("content");
  const std::string content_path = fields.PathOf("content");
  const bool list = content != nullptr && content->is_array();
  if (!list && (content == nullptr || !content->is_string())) {
    fields.Fault("content", "a string or a list of blocks");
  }
  if (list && content->empty() && role == "user") {
    fields.Fault("content", "a list of at least one block");
  }
  RETURN_IF_ERROR(fields.status());
  continues_ = role == "assistant";
  Json message = {{"role", role}};
  if (list) {
    for (size_t i = 0; i < content->size(); ++i) {
      RETURN_IF_ERROR(
          AddBlock((*content)[i], absl::StrCat(content_path, "[", i, "]"), role, message));
    }
  } else {
    message["content"] = *content;
  }
  // A user's message may consist of results alone, which AddBlock has added to the chat already.
  if (role == "user" && !message.contains("content")) return absl::OkStatus();
  if (!message.contains("content")) message["content"] = "";
  Push(std::move(message));
  return absl::OkStatus();
}

void AnthropicMessages::Push(Json message) {
  const bool has_text = message["content"] != "";
  // What an assistant says after its calls is another message.
  if (messages_.empty() || messages_.back()["role"] != message["role"] ||
      (has_text && messages_.back().contains("tool_calls"))) {
    messages_.push_back(std::move(message));
    return;
  }
  Json& last = messages_.back();
  if (last["content"] == "") {
    last["content"] = std::move(message["content"]);
  } else if (has_text) {
    AppendText(message["content"].get_ref<const std::string&>(), last);
  }
  if (!message.contains("tool_calls")) return;
  Json& calls = last["tool_calls"];
  if (calls.is_null()) calls = Json::array();
  for (Json& call : message["tool_calls"]) calls.push_back(std::move(call));
}

absl::Status AnthropicMessages::AddBlock(const Json& block, const std::string& path,
                                         const std::string& role, Json& message) {
  ASSIGN_OR_RETURN(const std::string type, TypeOf(block, path));
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string text, TextOf(block, path));
    AppendText(text, message);
    return absl::OkStatus();
  }
  if (role == "assistant") {
    if (type == "tool_use") return AddCall(block, path, message);
    return NotServed(path, type, "\"text\" or \"tool_use\"");
  }
  if (type != "tool_result") {
    return NotServed(path, type, "\"text\" or \"tool_result\": this model reads nothing else");
  }
  // What the user said before the result stays before it.
  if (message.contains("content")) {
    Push(std::exchange(message, Json{{"role", role}}));
  }
  return AddResult(block, path);
}

absl::Status AnthropicMessages::AddCall(const Json& block, const std::string& path, Json& message) {
  Fields fields(block, path);
  const std::string id = fields.String("id").value_or("");
  if (id.empty()) fields.Fault("id", "the call's id");
  const std::string name = fields.String("name").value_or("");
  if (name.empty()) fields.Fault("name", "the tool's name");
  const Json* input = fields.Object("input");
  if (input == nullptr) fields.Fault("input", "the call's arguments as an object");
  RETURN_IF_ERROR(fields.status());
  tools_[id] = name;
  Json& calls = message["tool_calls"];
  if (calls.is_null()) calls = Json::array();
  calls.push_back(
      {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *input}}}});
  return absl::OkStatus();
}

absl::Status AnthropicMessages::AddResult(const Json& block, const std::string& path) {
  Fields fields(block, path);
  const std::string id = fields.String("tool_use_id").value_or("");
  const auto tool = tools_.find(id);
  if (tool == tools_.end()) fields.Fault("tool_use_id", "the id of an earlier tool_use block");
  fields.Bool("is_error");
  const Json* content = fields.Any("content");
  RETURN_IF_ERROR(fields.status());
  std::string text;
  if (content != nullptr) {
    ASSIGN_OR_RETURN(text, ReadTexts(*content, fields.PathOf("content")));
  }
  messages_.push_back({{"role", "tool"},
                       {"tool_call_id", id},
                       {"name", tool->second},
                       {"content", std::move(text)}});
  return absl::OkStatus();
}

}  // namespace tandem::router
