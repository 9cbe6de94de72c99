#include "router/front_end/http/response_request.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/request/parameter_table.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/response_items.h"
#include "router/front_end/http/sampling_fields.h"

namespace tandem::router {
namespace {

// OpenAI's bounds.
constexpr size_t kMetadataMax = 16;
constexpr int64_t kMetadataKeyCharactersMax = 64;
constexpr int64_t kMetadataValueCharactersMax = 512;

// Where a chat's body has the schema of text.format.
constexpr char kSchemaOfChats[] = "response_format.json_schema.schema";

constexpr char kLogprobs[] = "message.output_text.logprobs";

// Fields that a chat's body has under the same name and with the same meaning, besides sampling and
// stop parameters.
constexpr const char* kSameInChats[] = {"model",
                                        "request_id",
                                        "stream",
                                        "skip_special_tokens",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "guided_grammar",
                                        "guided_json_object",
                                        "priority",
                                        "deadline_s",
                                        "cache_salt",
                                        "timing",
                                        "return_tokens_as_token_ids",
                                        "truncate_prompt_tokens",
                                        "chat_template_kwargs",
                                        "documents",
                                        "add_special_tokens",
                                        "add_generation_prompt",
                                        "continue_final_message"};

// Fields of the other endpoints, and their names here.
constexpr std::pair<const char*, const char*> kCalledOtherwise[] = {
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"functions", "tools"},
    {"logprobs", "\"include\": [\"message.output_text.logprobs\"]"}};

int64_t Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// A string, or null when absent: the form in which the response object repeats the field.
Json StringOrNull(Fields& fields, absl::string_view name) {
  auto value = fields.String(name);
  return value.has_value() ? Json(*std::move(value)) : Json();
}

// One of `options`, the first when absent.
std::string OneOf(Fields& fields, absl::string_view name,
                  std::initializer_list<absl::string_view> options) {
  const auto value = fields.String(name);
  if (!value.has_value()) return std::string(*options.begin());
  std::string list;
  for (const absl::string_view option : options) {
    if (*value == option) return *value;
    absl::StrAppend(&list, list.empty() ? "\"" : ", \"", option, "\"");
  }
  fields.Fault(name, absl::StrCat("one of ", list));
  return *value;
}

Json ReadMetadata(Fields& fields) {
  const Json* metadata = fields.Object("metadata");
  if (metadata == nullptr) return Json::object();
  if (metadata->size() > kMetadataMax) {
    fields.Keep(absl::InvalidArgumentError(
        absl::StrCat("metadata: ", metadata->size(), " pairs, expected at most ", kMetadataMax)));
  }
  for (const auto& [name, value] : metadata->items()) {
    if (Characters(name) > kMetadataKeyCharactersMax) {
      fields.Keep(absl::InvalidArgumentError(absl::StrCat("metadata: a key of ", Characters(name),
                                                          " characters, expected at most ",
                                                          kMetadataKeyCharactersMax)));
    } else if (!value.is_string() ||
               Characters(value.get_ref<const std::string&>()) > kMetadataValueCharactersMax) {
      fields.Keep(absl::InvalidArgumentError(
          absl::StrCat("metadata.", name, ": expected a string of at most ",
                       kMetadataValueCharactersMax, " characters")));
    }
  }
  return *metadata;
}

// The functions in the form of this API; `wrapped` receives them in the form of a chat.
absl::StatusOr<Json> ReadFunctions(Fields& fields, Json& wrapped) {
  const Json* tools = fields.Any("tools");
  Json list = wrapped = Json::array();
  if (tools == nullptr) return list;
  if (!tools->is_array()) {
    fields.Fault("tools", "a list of tools");
    return fields.status();
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    if (!(*tools)[i].is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", TypeName((*tools)[i]), ", expected an object"));
    }
    Fields tool((*tools)[i], path);
    const std::string type = tool.String("type").value_or("");
    if (tool.status().ok() && !type.empty() && type != "function") {
      return absl::UnimplementedError(absl::StrCat(path, ".type: ", ShownInQuotes(type),
                                                   ", expected \"function\": this router has no ",
                                                   "tools of its own"));
    }
    if (type.empty()) tool.Fault("type", "\"function\"");
    const std::string name = tool.String("name").value_or("");
    if (name.empty()) tool.Fault("name", "a function's name");
    Json function = {{"name", name}};
    const Json description = StringOrNull(tool, "description");
    if (!description.is_null()) function["description"] = description;
    const Json* parameters = tool.Object("parameters");
    if (parameters != nullptr) function["parameters"] = *parameters;
    const auto strict = tool.Bool("strict");
    RETURN_IF_ERROR(tool.status());
    list.push_back({{"type", "function"},
                    {"name", name},
                    {"description", description},
                    {"parameters", parameters == nullptr ? Json() : *parameters},
                    {"strict", strict.has_value() ? Json(*strict) : Json()}});
    wrapped.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return list;
}

absl::StatusOr<Json> ReadToolChoice(Fields& fields, Json& chat) {
  const Json* choice = fields.Any("tool_choice");
  if (choice == nullptr) return Json("auto");
  if (!choice->is_object()) {
    chat["tool_choice"] = *choice;
    return *choice;
  }
  Fields members(*choice, "tool_choice");
  const std::string type = members.String("type").value_or("");
  RETURN_IF_ERROR(members.status());
  if (type != "function") {
    return absl::UnimplementedError(
        absl::StrCat("tool_choice.type: ", ShownInQuotes(type), ", expected \"function\""));
  }
  const auto name = members.String("name");
  if (!name.has_value()) members.Fault("name", "a function's name");
  RETURN_IF_ERROR(members.status());
  chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  return Json{{"type", "function"}, {"name", *name}};
}

// Reads what the text must look like; `chat` receives the response_format of the same meaning.
absl::StatusOr<Json> ReadTextFormat(const Json& object, Json& chat) {
  Fields format(object, "text.format");
  const std::string type = OneOf(format, "type", {"text", "json_object", "json_schema"});
  RETURN_IF_ERROR(format.status());
  Json said = {{"type", type}};
  if (type == "text") return said;
  if (type == "json_schema") {
    const auto name = format.String("name");
    if (!name.has_value() || name->empty()) format.Fault("name", "a name of the schema");
    const Json* schema = format.Object("schema");
    if (schema == nullptr) format.Fault("schema", "a JSON Schema object");
    const Json description = StringOrNull(format, "description");
    // The answer always follows the schema; `strict` changes nothing.
    const auto strict = format.Bool("strict");
    RETURN_IF_ERROR(format.status());
    said.update({{"name", *name},
                 {"schema", *schema},
                 {"description", description},
                 {"strict", strict.has_value() ? Json(*strict) : Json()}});
    chat["response_format"] = {{"type", type}, {"json_schema", {{"schema", *schema}}}};
    return said;
  }
  chat["response_format"] = {{"type", type}};
  return said;
}

absl::StatusOr<Json> ReadTextSettings(Fields& fields, Json& chat) {
  Json text = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  const Json* given = fields.Object("text");
  if (given == nullptr) return text;
  Fields members(*given, "text");
  if (const Json* format = members.Object("format")) {
    ASSIGN_OR_RETURN(text["format"], ReadTextFormat(*format, chat));
  }
  text["verbosity"] = OneOf(members, "verbosity", {"medium", "low", "high"});
  RETURN_IF_ERROR(members.status());
  return text;
}

// Accepted and repeated in the answer, but without effect: no model here takes a reasoning effort.
Json ReadReasoning(Fields& fields) {
  Json reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  const Json* given = fields.Object("reasoning");
  if (given == nullptr) return reasoning;
  Fields members(*given, "reasoning");
  if (const auto effort = members.String("effort")) {
    reasoning["effort"] =
        OneOf(members, "effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  }
  if (const auto summary = members.String("summary")) {
    reasoning["summary"] = OneOf(members, "summary", {"auto", "concise", "detailed"});
  }
  fields.Keep(members.status());
  return reasoning;
}

// Reads `include`. Log-probabilities are the only entry with an effect: the others, also names that
// OpenAI's API does not have yet, stand for parts that our answers never have.
void ReadInclude(Fields& fields, Json& chat) {
  for (const std::string& name : fields.Strings("include")) {
    if (name == kLogprobs) chat["logprobs"] = true;
  }
}

// The items of the conversation before this request.
absl::StatusOr<Json> ReadPrevious(Fields& fields, const ResponseReading& reading, Json& settings) {
  settings["previous_response_id"] = StringOrNull(fields, "previous_response_id");
  RETURN_IF_ERROR(fields.status());
  if (settings["previous_response_id"].is_null()) return Json::array();
  if (reading.find == nullptr) {
    return absl::UnimplementedError(
        "previous_response_id: this router keeps no responses, expected the conversation as input");
  }
  return reading.find(settings["previous_response_id"].get<std::string>());
}

// Adds this request's input to `items`, the conversation so far, and writes all of it to `chat`.
absl::Status ReadInput(Fields& fields, const Json& instructions, Json& items, Json& chat) {
  ItemReader reader;
  if (instructions.is_string()) {
    RETURN_IF_ERROR(reader.Add({{"role", "system"}, {"content", instructions}}, "instructions"));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    RETURN_IF_ERROR(reader.Add(items[i], absl::StrCat("previous_response_id: item ", i)));
  }
  const Json* input = fields.Any("input");
  if (input != nullptr && input->is_string()) {
    items.push_back({{"type", "message"}, {"role", "user"}, {"content", *input}});
    RETURN_IF_ERROR(reader.Add(items.back(), "input"));
  } else if (input != nullptr && input->is_array() && !input->empty()) {
    for (size_t i = 0; i < input->size(); ++i) {
      RETURN_IF_ERROR(reader.Add((*input)[i], absl::StrCat("input[", i, "]")));
      items.push_back((*input)[i]);
    }
  } else {
    fields.Fault("input", "a string or a list of at least one item");
    return fields.status();
  }
  if (reader.continues()) chat["continue_final_message"] = true;
  chat["messages"] = reader.TakeMessages();
  return absl::OkStatus();
}

// Refuses fields that would change the answer, and accepts those without an effect.
void ReadUnservedFields(Fields& fields) {
  for (const auto& [name, here] : kCalledOtherwise) {
    if (fields.Any(name) == nullptr) continue;
    fields.Keep(absl::UnimplementedError(
        absl::StrCat(name, ": not a field of this endpoint, expected ", here)));
  }
  for (const char* name : {"n", "best_of"}) {
    if (fields.Integer(name).value_or(1) != 1) fields.Fault(name, "1: a response is one answer");
  }
  for (const char* name :
       {"background", "conversation", "prompt", "context_management", "moderation", "prompt_embeds",
        "echo", "use_beam_search", "prompt_logprobs", "return_token_ids", "chat_template",
        "previous_response", "previous_input_messages", "enable_response_messages",
        "mm_processor_kwargs", "vllm_xargs"}) {
    fields.Unserved(name);
  }
  if (const Json* options = fields.Object("stream_options")) {
    // Accepted without effect: events are not padded.
    Fields members(*options, "stream_options");
    members.Bool("include_obfuscation");
    fields.Keep(members.status());
  }
  fields.Bool("strict");
  fields.Ignore({"access_programs", "image", "prompt_cache_options", "prompt_cache_retention",
                 "background_options", "spaces_between_special_tokens"});
}

// Reads the plain values that the response object repeats, and writes to `chat` what they ask for.
void ReadPlainSettings(Fields& fields, bool keeps, Json& chat, ResponseParts& parts) {
  constexpr IntegerRange kPositive = {1, std::numeric_limits<int32_t>::max()};
  Json& settings = parts.settings;
  const auto max_tokens = fields.Integer("max_output_tokens", kPositive);
  if (max_tokens.has_value()) chat["max_completion_tokens"] = *max_tokens;
  const auto max_calls = fields.Integer("max_tool_calls", kPositive);
  const auto top = fields.Integer("top_logprobs", {0, request::kLogprobsMax});
  ReadInclude(fields, chat);
  if (chat.contains("logprobs")) chat["top_logprobs"] = top.value_or(0);
  const bool parallel_calls = fields.Bool("parallel_tool_calls").value_or(true);
  chat["parallel_tool_calls"] = parallel_calls;
  const std::string truncation = OneOf(fields, "truncation", {"disabled", "auto"});
  if (truncation == "auto" && !chat.contains("truncate_prompt_tokens")) {
    chat["truncate_prompt_tokens"] = -1;
  }
  if (const auto tier = fields.String("service_tier")) chat["service_tier"] = *tier;
  parts.store = fields.Bool("store").value_or(true) && keeps;
  settings["background"] = false;
  settings["max_output_tokens"] = max_tokens.has_value() ? Json(*max_tokens) : Json();
  settings["max_tool_calls"] = max_calls.has_value() ? Json(*max_calls) : Json();
  settings["metadata"] = ReadMetadata(fields);
  settings["parallel_tool_calls"] = parallel_calls;
  settings["prompt_cache_key"] = StringOrNull(fields, "prompt_cache_key");
  settings["reasoning"] = ReadReasoning(fields);
  settings["safety_identifier"] = StringOrNull(fields, "safety_identifier");
  settings["store"] = parts.store;
  settings["temperature"] = fields.Number("temperature").value_or(1);
  settings["top_logprobs"] = top.value_or(0);
  settings["top_p"] = fields.Number("top_p").value_or(1);
  settings["truncation"] = truncation;
  settings["user"] = StringOrNull(fields, "user");
}

void CopySharedFields(Fields& fields, Json& chat) {
  const auto copy = [&](absl::string_view name) {
    if (const Json* value = fields.Any(name)) chat[std::string(name)] = *value;
  };
  for (const char* name : kSameInChats) copy(name);
  CopySamplingFields(fields, request::kResponses, chat);
}

}  // namespace

void ResponseParts::PackSettings() {
  if (settings.is_null()) return;
  const std::string text = JsonText(std::exchange(settings, Json()));
  settings_text = text.substr(1, text.size() - 2);
}

absl::Status ToResponseFieldNames(const absl::Status& status) {
  static const auto* const names = new FieldNames{{"messages", "input"},
                                                  {"prompt", "input"},
                                                  {"response_format", "text.format"},
                                                  {kSchemaOfChats, "text.format.schema"},
                                                  {"tool_choice.function.name", "tool_choice.name"},
                                                  {"max_tokens", "max_output_tokens"},
                                                  {"max_completion_tokens", "max_output_tokens"}};
  return RenameField(status, *names);
}

absl::StatusOr<ApiRequest> ReadResponse(const Json& body, const ModelAssets& assets, absl::Time now,
                                        const ResponseReading& reading) {
  Fields fields(body);
  Json chat = Json::object();
  CopySharedFields(fields, chat);
  auto parts = std::make_shared<ResponseParts>();
  ReadPlainSettings(fields, reading.keeps, chat, *parts);
  ReadUnservedFields(fields);
  Json instructions = StringOrNull(fields, "instructions");
  RETURN_IF_ERROR(fields.status());
  ASSIGN_OR_RETURN(parts->settings["text"], ReadTextSettings(fields, chat));
  ASSIGN_OR_RETURN(parts->settings["tools"], ReadFunctions(fields, chat["tools"]));
  ASSIGN_OR_RETURN(parts->settings["tool_choice"], ReadToolChoice(fields, chat));
  ASSIGN_OR_RETURN(Json items, ReadPrevious(fields, reading, parts->settings));
  RETURN_IF_ERROR(ReadInput(fields, instructions, items, chat));
  const bool cuts_itself = fields.Any("truncate_prompt_tokens") != nullptr;
  RETURN_IF_ERROR(fields.Finish(reading.strict));
  if (parts->store) parts->items = JsonText(items);
  parts->items.shrink_to_fit();
  parts->settings["instructions"] = std::move(instructions);
  absl::StatusOr<ApiRequest> api = ReadChat(chat, assets, now, /*strict=*/false);
  if (!api.ok()) return ToResponseFieldNames(api.status());
  api->kind = ApiKind::kResponse;
  api->tells_tier = true;
  api->leaves_answer = !cuts_itself;
  api->response = std::move(parts);
  return api;
}

}  // namespace tandem::router
