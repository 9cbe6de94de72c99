// The schemas of the document at /openapi.json. Contract: router/front_end/http/openapi.h.
#include <google/protobuf/descriptor.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/request/parameter_table.h"
#include "router/core/request_input.h"
#include "router/front_end/http/openapi.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {
namespace {

// ---- fields that no table has

// One field of a request: its JSON type ("any" for several), what it does, and where the API says
// so, of which type a list's items are, and what range a number has.
struct FieldNote {
  const char* name;
  const char* type;
  const char* help;
  const char* items = "";
  std::optional<double> low = std::nullopt;
  std::optional<double> high = std::nullopt;
};

constexpr FieldNote kSharedFields[] = {
    {"model", "string", "A name that GET /v1/models lists; absent: the model that is served."},
    {"request_id", "string", "The request's name, for aborting and tracing it."},
    {"n", "integer", "Answers to each prompt.", "", 1, kSequencesMax},
    {"best_of", "integer", "Answers that are generated; the n likeliest come back.", "", 1,
     kSequencesMax},
    {"use_beam_search", "boolean", "Beam search of width best_of or n."},
    {"length_penalty", "number", "Of a beam search: its score is log-probability / tokens^this."},
    {"early_stopping", "boolean", "Ends a beam search once enough answers are complete."},
    {"stream", "boolean", "Sends the answer as server-sent events."},
    {"stream_options", "object", "include_usage, continuous_usage_stats."},
    {"response_format", "object", "text, json_object or json_schema."},
    {"guided_json", "any", "A JSON Schema that the answer follows."},
    {"guided_regex", "string", "A regular expression that the whole answer matches."},
    {"guided_choice", "array", "Texts of which the answer is one.", "string"},
    {"guided_grammar", "string", "An EBNF grammar that the answer follows."},
    {"guided_json_object", "boolean", "true: the answer is a JSON object."},
    {"grammar", "string", "As guided_grammar; an empty one is none."},
    {"json_schema", "any", "As guided_json."},
    {"structured_outputs", "object", "One of json, regex, choice, grammar, json_object."},
    {"skip_special_tokens", "boolean", "false: special tokens stay in the text."},
    {"prompt_logprobs", "integer", "Log-probabilities of the prompt's tokens; not with stream.", "",
     0, request::kLogprobsMax},
    {"priority", "integer", "A lower one is served earlier."},
    {"service_tier", "string", "One of the router's service tiers; it decides who waits."},
    {"deadline_s", "number", "Seconds until the whole answer must be out.", "", 0.001},
    {"cache_salt", "string", "Requests share cached prefixes only under equal salts."},
    {"return_token_ids", "boolean", "Token ids come back, too."},
    {"return_tokens_as_token_ids", "boolean", "token_id:17 for a token's text in logprobs."},
    {"timing", "boolean", "Times, nodes and sources of the prompt's KV come back."},
    {"truncate_prompt_tokens", "integer",
     "Keeps this many of the prompt's last tokens; -1: as many as the context holds.", "", -1},
    {"strict", "boolean", "Refuses unknown fields."},
};
constexpr FieldNote kCompletionFields[] = {
    {"prompt", "any", "A text, texts, token ids, or lists of token ids."},
    {"echo", "boolean", "The prompt's text comes first."},
};
constexpr FieldNote kChatFields[] = {
    {"messages", "array", "The conversation so far: objects with role and content.", "object"},
    {"tools", "array", "Functions that the answer may call.", "object"},
    {"tool_choice", "any", "none, auto, required, or one function."},
    {"parallel_tool_calls", "boolean", "false: of several calls the first is given."},
    {"logprobs", "boolean", "Log-probabilities of the answer's tokens."},
    {"top_logprobs", "integer", "How many of the likeliest tokens come with each; 0 to 20.", "", 0,
     request::kLogprobsMax},
    {"add_generation_prompt", "boolean", "false: the prompt ends after the last message."},
    {"continue_final_message", "boolean", "The answer continues the last message."},
    {"add_special_tokens", "boolean", "Adds the tokenizer's special tokens once more."},
    {"documents", "array", "For the model's template.", "object"},
    {"chat_template_kwargs", "object", "Variables of the model's template."},
};
constexpr FieldNote kResponseFields[] = {
    {"input", "any", "A text, or items: messages, function calls and their outputs."},
    {"model", "string", "A name that GET /v1/models lists."},
    {"instructions", "string", "A system message that comes first."},
    {"previous_response_id", "string", "A kept response whose conversation this one continues."},
    {"max_output_tokens", "integer", "Longest answer, in tokens.", "", 1},
    {"stream", "boolean", "Sends the response as server-sent events."},
    {"store", "boolean", "false: the router does not keep the response."},
    {"text", "object", "format: text, json_object or json_schema."},
    {"tools", "array", "Functions that the answer may call.", "object"},
    {"tool_choice", "any", "none, auto, required, or one function."},
    {"parallel_tool_calls", "boolean", "false: of several calls the first is given."},
    {"top_logprobs", "integer", "How many of the likeliest tokens come with each; 0 to 20.", "", 0,
     request::kLogprobsMax},
    {"include", "array", "message.output_text.logprobs.", "string"},
    {"truncation", "string", "auto or disabled."},
    {"metadata", "object", "Comes back; at most 16 strings."},
    {"strict", "boolean", "Refuses unknown fields."},
};
constexpr FieldNote kTokenizeFields[] = {
    {"prompt", "string", "A text; or give messages."},
    {"messages", "array", "A conversation, rendered with the model's template.", "object"},
    {"tools", "array", "Functions for the template.", "object"},
    {"add_special_tokens", "boolean", "As the checkpoint says, unless false."},
    {"add_generation_prompt", "boolean", "false: the prompt ends after the last message."},
    {"return_token_strs", "boolean", "The text of each token comes back, too."},
    {"strict", "boolean", "Refuses unknown fields."},
};
constexpr FieldNote kMessagesFields[] = {
    {"messages", "array", "The conversation so far: objects with role and content.", "object"},
    {"max_tokens", "integer", "Longest answer, in tokens.", "", 1},
    {"system", "any", "A text, or blocks of text, that come first."},
    {"model", "string", "A name that GET /v1/models lists."},
    {"stop_sequences", "array", "Texts that end the answer.", "string"},
    {"stream", "boolean", "Sends the answer as server-sent events."},
    {"tools", "array", "Functions with name and input_schema that the answer may call.", "object"},
    {"tool_choice", "object", "auto, any, tool or none."},
};
constexpr FieldNote kOllamaChatFields[] = {
    {"model", "string", "A name that GET /api/tags lists."},
    {"messages", "array", "The conversation so far: objects with role and content.", "object"},
    {"stream", "boolean", "false: one object instead of lines."},
    {"format", "any", "json, or a JSON Schema that the answer follows."},
    {"options", "object", "Sampling and stop parameters under Ollama's names."},
    {"tools", "array", "Functions that the answer may call.", "object"},
};
constexpr FieldNote kOllamaGenerateFields[] = {
    {"model", "string", "A name that GET /api/tags lists."},
    {"prompt", "string", "A text."},
    {"system", "string", "A system message that comes first."},
    {"raw", "boolean", "The prompt is not put into the model's template."},
    {"stream", "boolean", "false: one object instead of lines."},
    {"format", "any", "json, or a JSON Schema that the answer follows."},
    {"options", "object", "Sampling and stop parameters under Ollama's names."},
};
constexpr FieldNote kOllamaShowFields[] = {
    {"model", "string", "A name that GET /api/tags lists."},
};
constexpr FieldNote kDetokenizeFields[] = {
    {"tokens", "array", "Token ids.", "integer"},
    {"skip_special_tokens", "boolean", "Leaves special tokens out of the text."},
    {"strict", "boolean", "Refuses unknown fields."},
};

Json TypeOf(absl::string_view type) {
  if (type == "any") return Json::object();
  return {{"type", Json::array({type, "null"})}};
}

Json PropertiesOf(absl::Span<const FieldNote> notes) {
  Json properties = Json::object();
  for (const FieldNote& note : notes) {
    Json& property = properties[note.name] = TypeOf(note.type);
    property["description"] = note.help;
    if (*note.items != '\0') property["items"] = {{"type", note.items}};
    if (note.low.has_value()) property["minimum"] = *note.low;
    if (note.high.has_value()) property["maximum"] = *note.high;
  }
  return properties;
}

// ---- the parameter table

void SetRange(const request::Range& range, Json& schema) {
  if (range.low > -request::Range::kUnbounded) {
    schema[range.low_excluded ? "exclusiveMinimum" : "minimum"] = range.low;
  }
  if (range.high < request::Range::kUnbounded) schema["maximum"] = range.high;
}

Json TextsSchema(const request::ListBounds& bounds) {
  Json text = {{"type", "string"}};
  if (bounds.entry_size_min > 0) text["minLength"] = bounds.entry_size_min;
  Json list = {{"type", "array"}, {"items", text}};
  if (bounds.entries_max < std::numeric_limits<size_t>::max()) {
    list["maxItems"] = bounds.entries_max;
  }
  return {{"anyOf", Json::array({text, list, Json{{"type", "null"}}})}};
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename Params, typename T>
Json ParameterSchema(const request::Parameter<Params, T>& row) {
  const request::Description& about = row.about;
  Json schema;
  if constexpr (std::is_same_v<T, std::vector<std::string>> ||
                std::is_same_v<T, std::vector<std::vector<TokenId>>>) {
    schema = TextsSchema(about.list);
  } else if constexpr (std::is_same_v<T, std::vector<TokenId>>) {
    schema = {{"type", Json::array({"array", "null"})},
              {"items", {{"type", "integer"}, {"minimum", 0}}}};
    if constexpr (std::is_same_v<Params, request::SamplingParams>) schema["minItems"] = 1;
  } else if constexpr (std::is_same_v<T, std::vector<std::pair<TokenId, float>>>) {
    Json bias = {{"type", "number"}};
    SetRange(about.range, bias);
    const Json members = {{"type", "object"},
                          {"propertyNames", {{"pattern", "^[0-9]+$"}}},
                          {"additionalProperties", bias}};
    const Json pair = {{"type", "array"},
                       {"prefixItems", Json::array({{{"type", "integer"}, {"minimum", 0}}, bias})},
                       {"minItems", 2},
                       {"maxItems", 2}};
    const Json pairs = {{"type", "array"}, {"items", pair}};
    schema = {{"anyOf", Json::array({members, pairs, Json{{"type", "null"}}})}};
  } else {
    schema = TypeOf(std::is_same_v<T, bool>       ? "boolean"
                    : std::is_floating_point_v<T> ? "number"
                                                  : "integer");
    // Where the table says in words what is expected, the range is not all of it.
    if (about.expected.empty()) SetRange(about.range, schema);
    if constexpr (!IsOptional<T>::value) {
      if (about.default_text.empty()) schema["default"] = Params{}.*row.member;
    }
  }
  std::string help(about.help);
  if (!about.expected.empty()) absl::StrAppend(&help, " Expected: ", about.expected, ".");
  if (!about.default_text.empty()) absl::StrAppend(&help, " Default: ", about.default_text, ".");
  schema["description"] = help;
  return schema;
}

// Adds the parameters that `api` reads, under every name that it knows.
void AddParameters(request::Api api, Json& properties) {
  request::ForEachParameter([&](const auto& row) {
    const Json schema = ParameterSchema(row);
    if (row.about.apis & api) properties[std::string(row.about.name)] = schema;
    for (const request::Alias& alias : row.about.aliases) {
      const std::string name(alias.name);
      if ((alias.apis & api) && !properties.contains(name)) properties[name] = schema;
    }
  });
}

Json RequestSchema(Json properties, absl::string_view required) {
  if (required.empty()) return {{"type", "object"}, {"properties", std::move(properties)}};
  // What must be there may not be null.
  Json& type = properties[std::string(required)]["type"];
  if (type.is_array()) type = type.front();
  if (type.is_null()) properties[std::string(required)].erase("type");
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", Json::array({required})}};
}

// ---- protobuf messages, as their JSON mapping writes them

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

Json MessageSchema(const Descriptor& message);

Json ValueSchema(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageSchema(*field.message_type());
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return {{"type", "number"}};
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
      return {{"type", "integer"}};
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
      // A number of JSON keeps 53 bits in many readers, so these are texts.
      return {{"type", "string"}, {"pattern", "^-?[0-9]+$"}};
    default:
      return {{"type", "string"}};  // strings, names of enumerators
  }
}

Json MessageSchema(const Descriptor& message) {
  Json properties = Json::object();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    Json value = ValueSchema(field);
    properties[field.name()] = field.is_repeated()
                                   ? Json{{"type", "array"}, {"items", std::move(value)}}
                                   : std::move(value);
  }
  return {{"type", "object"}, {"properties", std::move(properties)}};
}

// ---- replies of OpenAI's and vLLM's endpoints: only what a reader needs to find its way

Json ObjectOf(std::initializer_list<std::pair<const char*, const char*>> members) {
  Json properties = Json::object(), required = Json::array();
  for (const auto& [name, type] : members) {
    properties[name] = {{"type", type}};
    required.push_back(name);
  }
  return {{"type", "object"}, {"properties", properties}, {"required", required}};
}

void AddReplies(Json& schemas) {
  const Json answer = ObjectOf({{"id", "string"},
                                {"object", "string"},
                                {"created", "integer"},
                                {"model", "string"},
                                {"choices", "array"},
                                {"usage", "object"}});
  schemas["Completion"] = answer;
  schemas["ChatCompletion"] = answer;
  schemas["Response"] =
      ObjectOf({{"id", "string"}, {"object", "string"}, {"status", "string"}, {"output", "array"}});
  schemas["KeptResponse"] = ObjectOf({{"id", "string"}, {"object", "string"}});
  schemas["InputTokens"] = ObjectOf({{"object", "string"}, {"input_tokens", "integer"}});
  schemas["Tokens"] =
      ObjectOf({{"count", "integer"}, {"tokens", "array"}, {"max_model_len", "integer"}});
  schemas["Prompt"] = ObjectOf({{"prompt", "string"}});
  schemas["Model"] =
      ObjectOf({{"id", "string"}, {"object", "string"}, {"max_model_len", "integer"}});
  schemas["ModelList"] = ObjectOf({{"object", "string"}, {"data", "array"}});
  schemas["Properties"] = ObjectOf({{"default_generation_settings", "object"},
                                    {"model_path", "string"},
                                    {"model_alias", "string"},
                                    {"chat_template", "string"},
                                    {"bos_token", "string"},
                                    {"eos_token", "string"},
                                    {"build_info", "string"}});
  schemas["State"] = ObjectOf({{"status", "string"}});
  schemas["Load"] = ObjectOf({{"server_load", "integer"}});
  schemas["Drain"] = ObjectOf(
      {{"draining", "boolean"}, {"requests_running", "integer"}, {"requests_queued", "integer"}});
  schemas["Version"] = ObjectOf({{"version", "string"}});
  schemas["OllamaVersion"] = ObjectOf({{"version", "string"}, {"tandem", "string"}});
  schemas["Traces"] = ObjectOf({{"traces", "array"}});
  schemas["Document"] = {{"type", "object"}};
  Json error = ObjectOf({{"message", "string"}, {"type", "string"}});
  schemas["Error"] = {{"type", "object"},
                      {"properties", {{"error", std::move(error)}}},
                      {"required", Json::array({"error"})}};
  schemas["Message"] = ObjectOf({{"id", "string"},
                                 {"type", "string"},
                                 {"role", "string"},
                                 {"content", "array"},
                                 {"usage", "object"}});
  schemas["AnthropicError"] = ObjectOf({{"type", "string"}, {"error", "object"}});
  schemas["OllamaLine"] =
      ObjectOf({{"model", "string"}, {"created_at", "string"}, {"done", "boolean"}});
  schemas["OllamaModel"] = ObjectOf({{"details", "object"}, {"model_info", "object"}});
  schemas["OllamaModels"] = ObjectOf({{"models", "array"}});
  schemas["OllamaError"] = ObjectOf({{"error", "string"}});
}

}  // namespace

Json OpenApiSchemas() {
  Json schemas = Json::object();
  const auto add = [&schemas](const char* name, absl::Span<const FieldNote> own,
                              absl::Span<const FieldNote> shared, unsigned api,
                              absl::string_view required) {
    Json properties = PropertiesOf(own);
    properties.update(PropertiesOf(shared));
    if (api != 0) AddParameters(static_cast<request::Api>(api), properties);
    schemas[name] = RequestSchema(std::move(properties), required);
  };
  add("CompletionRequest", kCompletionFields, kSharedFields, request::kCompletions, "prompt");
  add("ChatRequest", kChatFields, kSharedFields, request::kChat, "messages");
  add("ResponseRequest", kResponseFields, {}, request::kResponses, "input");
  add("TokenizeRequest", kTokenizeFields, {}, 0, "");
  add("DetokenizeRequest", kDetokenizeFields, {}, 0, "tokens");
  add("MessagesRequest", kMessagesFields, {}, request::kMessages, "messages");
  add("OllamaChatRequest", kOllamaChatFields, {}, 0, "");
  add("OllamaGenerateRequest", kOllamaGenerateFields, {}, 0, "");
  add("OllamaShowRequest", kOllamaShowFields, {}, 0, "");
  AddReplies(schemas);
  schemas["ClusterStatus"] = MessageSchema(*v1::GetStatusResponse::descriptor());
  schemas["Trace"] = MessageSchema(*v1::RequestTrace::descriptor());
  return schemas;
}

}  // namespace tandem::router
