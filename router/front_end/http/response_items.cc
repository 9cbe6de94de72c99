#include "router/front_end/http/response_items.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/chat_messages.h"
#include "router/front_end/http/json_fields.h"

namespace tandem::router {
namespace {

// A kind of thing that is not served here, named.
absl::Status Refused(const std::string& path, absl::string_view what, absl::string_view expected) {
  return absl::UnimplementedError(
      absl::StrCat(path, ": ", ShownInQuotes(what), ", expected ", expected));
}

// The text of `name`: a string, or parts with text joined by line ends, as a chat's are; refusals
// among them if `may_refuse`.
absl::StatusOr<std::string> ReadText(Fields& fields, absl::string_view name, bool may_refuse) {
  const Json* content = fields.Any(name);
  if (content != nullptr && content->is_string()) return content->get<std::string>();
  if (content == nullptr || !content->is_array()) {
    fields.Fault(name, "a string or a list of text parts");
    return fields.status();
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string path = absl::StrCat(fields.PathOf(name), "[", i, "]");
    const Json& object = (*content)[i];
    if (!object.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", TypeName(object), ", expected an object"));
    }
    Fields part(object, path);
    const auto type = part.String("type");
    if (!type.has_value()) part.Fault("type", "\"input_text\" or \"output_text\"");
    RETURN_IF_ERROR(part.status());
    const bool refusal = may_refuse && *type == "refusal";
    if (!refusal && *type != "input_text" && *type != "output_text") {
      return Refused(part.PathOf("type"), *type,
                     "\"input_text\" or \"output_text\": this model reads nothing else");
    }
    const char* const member = refusal ? "refusal" : "text";
    const auto piece = part.String(member);
    if (!piece.has_value()) part.Fault(member, "a string");
    RETURN_IF_ERROR(part.status());
    absl::StrAppend(&text, i == 0 ? "" : "\n", *piece);
  }
  return text;
}

}  // namespace

absl::Status ItemReader::Add(const Json& item, const std::string& path) {
  if (!item.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", TypeName(item), ", expected an object"));
  }
  Fields fields(item, path);
  // Messages and references to items may leave their type out.
  const std::string type = fields.String("type").value_or(
      item.contains("role") || !item.contains("id") ? "message" : "item_reference");
  RETURN_IF_ERROR(fields.status());
  continues_ = false;
  if (type == "message") return AddMessage(item, path);
  if (type == "function_call") return AddCall(item, path);
  if (type == "function_call_output") return AddOutput(item, path);
  return Refused(fields.PathOf("type"), type,
                 "\"message\", \"function_call\" or \"function_call_output\"");
}

absl::Status ItemReader::AddMessage(const Json& item, const std::string& path) {
  Fields fields(item, path);
  const std::string role = fields.String("role").value_or("");
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    fields.Fault("role", "\"user\", \"assistant\", \"system\" or \"developer\"");
  }
  const std::string status = fields.String("status").value_or("");
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(std::string text, ReadText(fields, "content", role == "assistant"));
  continues_ = role == "assistant" && (status == "incomplete" || status == "in_progress");
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
  return absl::OkStatus();
}

absl::Status ItemReader::AddCall(const Json& item, const std::string& path) {
  Fields fields(item, path);
  const std::string id = fields.String("call_id").value_or("");
  const std::string name = fields.String("name").value_or("");
  const auto arguments = fields.String("arguments");
  fields.String("status");
  if (id.empty()) fields.Fault("call_id", "a string that is not empty");
  if (name.empty()) fields.Fault("name", "a function's name");
  if (!arguments.has_value()) fields.Fault("arguments", "a JSON object as a string");
  RETURN_IF_ERROR(fields.status());
  if (messages_.empty() || messages_.back()["role"] != "assistant") {
    messages_.push_back({{"role", "assistant"}, {"content", ""}});
  }
  messages_.back()["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", ParseArguments(*arguments)}}}});
  call_ids_.insert(id);
  return absl::OkStatus();
}

absl::Status ItemReader::AddOutput(const Json& item, const std::string& path) {
  Fields fields(item, path);
  const std::string id = fields.String("call_id").value_or("");
  if (!call_ids_.contains(id)) {
    fields.Fault("call_id", "that of a function_call item before this one");
  }
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(std::string text, ReadText(fields, "output", /*may_refuse=*/false));
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
  return absl::OkStatus();
}

}  // namespace tandem::router
