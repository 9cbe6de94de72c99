#include "cli/batch/batch_lines.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/summary_text.h"
#include "common/base/status_macros.h"
#include "common/config/schema.h"
#include "common/request/parameter_table.h"
#include "common/request/request_members.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

using router::Json;

// Fields of a GenerateRequest that a line has under the same name. `bad_words` are texts here,
// which is the form of GenerateRequest.bad_words.
constexpr const char* kRequestFields[] = {"model",     "cache_salt", "priority", "service_tier",
                                          "bad_words", "deadline_s", "echo"};
// The line's name, and fields that say how to deliver the answer; a batch ignores them.
constexpr const char* kIgnoredFields[] = {"custom_id", "stream", "stream_options"};

template <size_t kCount>
bool Contains(const char* const (&names)[kCount], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

absl::Status Wrong(absl::string_view field, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected));
}

absl::Status ReadPrompt(const Json& prompt, v1::GenerateRequest& request) {
  if (prompt.is_string()) {
    request.set_text(prompt.get<std::string>());
    return absl::OkStatus();
  }
  if (!prompt.is_array() || prompt.empty()) return Wrong("prompt", "a text or token ids");
  for (const Json& id : prompt) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return Wrong("prompt", "a text or token ids, one prompt a line");
    }
    request.mutable_tokens()->add_ids(id.get<int32_t>());
  }
  return absl::OkStatus();
}

// A message's text: a string, or parts of type "text" joined by line breaks; nullopt for anything
// else.
std::optional<std::string> TextOf(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array() || content.empty()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != Json("text") ||
        !part.value("text", Json()).is_string()) {
      return std::nullopt;
    }
    absl::StrAppend(&text, &part == &content.front() ? "" : "\n", part["text"].get<std::string>());
  }
  return text;
}

absl::Status ReadMessages(const Json& messages, v1::GenerateRequest& request) {
  if (!messages.is_array() || messages.empty()) return Wrong("messages", "a list of messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& one = messages[i];
    const Json role = one.is_object() ? one.value("role", Json()) : Json();
    const std::optional<std::string> text =
        one.is_object() ? TextOf(one.value("content", Json())) : std::nullopt;
    if (!role.is_string() || !text.has_value()) {
      return Wrong(absl::StrCat("messages[", i, "]"),
                   "a role, and a content of text or text parts");
    }
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    // Chat templates know the role "developer" by its older name.
    message.set_role(role == "developer" ? "system" : role.get<std::string>());
    message.set_content(*text);
  }
  return absl::OkStatus();
}

absl::Status ReadResponseFormat(const Json& format, v1::GenerateRequest& request) {
  const std::string type =
      format.is_object() && format.contains("type") && format["type"].is_string()
          ? format["type"].get<std::string>()
          : "";
  if (type == "text") {
    request.clear_guided();
    return absl::OkStatus();
  }
  if (type == "json_object") {
    request.mutable_guided()->set_json_object(true);
    return absl::OkStatus();
  }
  if (type == "json_schema" && format.contains("json_schema") &&
      format["json_schema"].is_object() && format["json_schema"].contains("schema")) {
    request.mutable_guided()->set_json_schema(router::JsonText(format["json_schema"]["schema"]));
    return absl::OkStatus();
  }
  return Wrong("response_format", "type text, json_object or json_schema with a schema");
}

// Whether a member that a batch does not serve changes no answer: as the HTTP front end's table
// says, or by a value that asks for nothing.
bool ChangesNothing(absl::string_view name, const Json& value) {
  for (const request::RequestMember& member : request::kRequestMembers) {
    if (member.name != name) continue;
    if (member.handling == request::Handling::kHarmless) return true;
    const bool asks_for_nothing =
        value == false || value == "" || (value.is_structured() && value.empty());
    return asks_for_nothing && member.neutral.empty();
  }
  return false;
}

// Where the sampling or stop parameter `name` lies in the JSON of a GenerateRequest.
struct Place {
  const char* part;         // "sampling" or "stop"
  absl::string_view field;  // the wire's name for it
};
std::optional<Place> PlaceOf(absl::string_view name) {
  std::optional<Place> place;
  request::ForEachParameter([&](const auto& row) {
    using Params = typename std::decay_t<decltype(row)>::params_type;
    bool is_named = (row.about.apis & request::kBatch) != 0 && row.about.name == name;
    for (const request::Alias& alias : row.about.aliases) {
      is_named = is_named || ((alias.apis & request::kBatch) != 0 && alias.name == name);
    }
    if (!is_named) return;
    place =
        Place{std::is_same_v<Params, request::StopParams> ? "stop" : "sampling", row.about.name};
  });
  return place;
}

// As over HTTP: any 64 bits with or without a sign, which the wire's JSON does not take, and -1 for
// a seed that the router draws.
absl::Status ReadSeed(const Json& value, v1::GenerateRequest& request) {
  if (!value.is_number_unsigned() && value == -1) {
    request.mutable_sampling()->clear_seed();
  } else {
    request.mutable_sampling()->set_seed(value.get<uint64_t>());
  }
  return absl::OkStatus();
}

google::protobuf::Message& PartOf(const Place& place, v1::GenerateRequest& request) {
  if (place.part == absl::string_view("stop")) return *request.mutable_stop();
  return *request.mutable_sampling();
}

// A line's list takes the place of the flags', to which MergeFrom would add it.
void ClearList(const std::string& field, google::protobuf::Message& message) {
  const auto* described = message.GetDescriptor()->FindFieldByName(field);
  if (described != nullptr && described->is_repeated())
    message.GetReflection()->ClearField(&message, described);
}

// For a field that no line may have: one of the HTTP APIs', or one that is not known at all.
absl::Status RefusedField(const std::string& name) {
  for (const request::RequestMember& member : request::kRequestMembers) {
    if (member.name == name)
      return absl::InvalidArgumentError(absl::StrCat(name, ": not served in a batch"));
  }
  bool elsewhere = false;  // whether another API has a parameter of this name
  std::vector<std::string> known = {"prompt", "messages", "response_format"};
  known.insert(known.end(), std::begin(kRequestFields), std::end(kRequestFields));
  request::ForEachParameter([&](const auto& row) {
    if ((row.about.apis & request::kBatch) != 0) known.emplace_back(row.about.name);
    elsewhere = elsewhere || row.about.name == name;
    for (const request::Alias& alias : row.about.aliases)
      elsewhere = elsewhere || alias.name == name;
  });
  const std::string nearest = config::Nearest(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat(name, elsewhere ? ": not served in a batch" : ": unknown field",
                   nearest.empty() ? "" : "; nearest known: ", nearest));
}

// What a field's JSON must be, in words.
std::string ExpectedOf(const std::string& name, const Json& value) {
  using Type = google::protobuf::FieldDescriptor;
  if (name == "stop") return "a text or a list of texts";
  const google::protobuf::Descriptor* message = v1::GenerateRequest::descriptor();
  std::string field = name;
  const std::optional<Place> place = Contains(kRequestFields, name) ? std::nullopt : PlaceOf(name);
  if (place.has_value()) {
    field = std::string(place->field);
    message = message->FindFieldByName(place->part)->message_type();
  }
  const Type* type = message->FindFieldByName(field);
  if (type == nullptr || type->is_map()) return "an object of numbers by token ids";
  const bool list = type->is_repeated();
  switch (type->cpp_type()) {
    case Type::CPPTYPE_BOOL:
      return list ? "a list of true or false" : "true or false";
    case Type::CPPTYPE_STRING:
      return list ? "a list of texts" : "a text";
    case Type::CPPTYPE_FLOAT:
    case Type::CPPTYPE_DOUBLE:
      return list ? "a list of numbers" : "a number";
    default:
      if (list) return "a list of integers";
      return value.is_number_integer() ? "an integer of at most 32 bits" : "an integer";
  }
}

// Puts `name` into `wire`, the JSON of a GenerateRequest's parameters, or straight into `request`.
absl::Status ReadField(const std::string& name, const Json& value, Json& wire,
                       v1::GenerateRequest& request) {
  if (value.is_null() || Contains(kIgnoredFields, name)) return absl::OkStatus();
  if (name == "prompt") return ReadPrompt(value, request);
  if (name == "messages") return ReadMessages(value, request);
  if (name == "response_format") return ReadResponseFormat(value, request);
  if (name == "n") return value == 1 ? absl::OkStatus() : Wrong("n", "1: a line has one answer");
  if (name == "stop") {
    wire["stop"]["stop"] = value.is_string() ? Json::array({value}) : value;
    ClearList("stop", *request.mutable_stop());
  } else if (Contains(kRequestFields, name)) {
    wire[name] = value;
    ClearList(name, request);
  } else if (name == "seed" && value.is_number_integer()) {
    return ReadSeed(value, request);
  } else if (const std::optional<Place> place = PlaceOf(name)) {
    wire[place->part][std::string(place->field)] = value;
    ClearList(std::string(place->field), PartOf(*place, request));
  } else if (!ChangesNothing(name, value)) {
    return RefusedField(name);
  }
  return absl::OkStatus();
}

// Whether `wire`, the JSON of a GenerateRequest, is one.
absl::Status ReadWire(const Json& wire, v1::GenerateRequest& request) {
  const auto parsed = google::protobuf::util::JsonStringToMessage(router::JsonText(wire), &request);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(parsed.message().data(), parsed.message().size()));
}

// The error of a body whose fields ReadWire refused with `refused`: names the first such field.
absl::Status WrongField(const Json& body, const absl::Status& refused) {
  for (const auto& [name, value] : body.items()) {
    Json wire = Json::object();
    v1::GenerateRequest scratch;
    if (!ReadField(name, value, wire, scratch).ok()) continue;
    if (!ReadWire(wire, scratch).ok()) return Wrong(name, ExpectedOf(name, value));
  }
  return refused;
}

absl::StatusOr<std::string> NameOf(const Json& line, int64_t number) {
  const auto name = line.find("custom_id");
  if (name == line.end() || name->is_null()) return absl::StrCat("line-", number);
  if (!name->is_string()) return Wrong("custom_id", "a text");
  return name->get<std::string>();
}

absl::StatusOr<Json> BodyOf(const Json& line) {
  if (!line.contains("body")) return line;
  for (const auto& [name, value] : line.items()) {
    if (name == "url" && value != "/v1/completions" && value != "/v1/chat/completions") {
      return Wrong("url", "/v1/completions or /v1/chat/completions");
    }
    if (name != "url" && name != "custom_id" && name != "method" && name != "body") {
      return Wrong(name, "custom_id, method, url and body alone beside a body");
    }
  }
  if (!line["body"].is_object()) return Wrong("body", "a JSON object");
  return line["body"];
}

// ---- what an earlier run left behind

constexpr size_t kDigestDigits = 32;

struct OutputLine {
  std::string text;
  bool whole = false;  // ended by a newline, and not too long
};

// The next line; false at the end. A line that is too long ends the reading.
bool ReadLine(std::istream& file, OutputLine& line) {
  char piece[16 << 10];
  line.text.clear();
  line.whole = false;
  while (file) {
    file.getline(piece, sizeof(piece));
    const auto taken = static_cast<size_t>(file.gcount());
    if (file.bad()) return false;
    // The newline counts as taken, and is not stored.
    line.whole = !file.eof() && !file.fail();
    line.text.append(piece, line.whole ? taken - 1 : taken);
    if (line.whole || line.text.size() > kOutputLineBytesMax) return true;
    if (file.fail() && !file.eof()) file.clear();
  }
  return !line.text.empty();
}

bool IsOurs(const Json& json) {
  return json.is_object() && json.contains("custom_id") && json["custom_id"].is_string() &&
         (json.contains("text") || json.contains("error"));
}

// Whether so far it is what FormatBatchAnswer or FormatBatchError writes.
bool BeginsAsOurs(absl::string_view text) {
  constexpr absl::string_view kBegin = R"({"custom_id":")";
  return text.size() <= kOutputLineBytesMax &&
         (absl::StartsWith(text, kBegin) || absl::StartsWith(kBegin, text));
}

}  // namespace

absl::StatusOr<BatchRequest> ParseBatchLine(absl::string_view line, int64_t number,
                                            const v1::GenerateRequest& defaults) {
  ASSIGN_OR_RETURN(const Json json, router::ParseJsonBody(line));
  BatchRequest batch;
  batch.request = defaults;
  ASSIGN_OR_RETURN(batch.custom_id, NameOf(json, number));
  ASSIGN_OR_RETURN(const Json body, BodyOf(json));
  Json wire = Json::object();
  for (const auto& [name, value] : body.items()) {
    RETURN_IF_ERROR(ReadField(name, value, wire, batch.request));
  }
  if (body.contains("prompt") == body.contains("messages")) {
    return absl::InvalidArgumentError("expected one of prompt and messages");
  }
  v1::GenerateRequest parameters;
  if (const absl::Status read = ReadWire(wire, parameters); !read.ok())
    return WrongField(body, read);
  batch.request.MergeFrom(parameters);
  return batch;
}

std::string BatchLineName(absl::string_view line, int64_t number) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("custom_id") && json["custom_id"].is_string()) {
    return json["custom_id"].get<std::string>();
  }
  return absl::StrCat("line-", number);
}

std::string FormatBatchAnswer(absl::string_view custom_id, const BatchAnswer& answer) {
  const v1::Usage& usage = answer.finished.usage();
  return router::JsonText(
             {{"custom_id", std::string(custom_id)},
              {"request", answer.request_digest},
              {"text", answer.text},
              {"tokens", answer.tokens},
              {"finish_reason", ReasonText(answer.finished.reason())},
              {"usage",
               {{"prompt_tokens", usage.prompt_tokens()},
                {"completion_tokens", usage.output_tokens()},
                {"total_tokens", usage.prompt_tokens() + usage.output_tokens()},
                {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}}}}}) +
         "\n";
}

std::string FormatBatchError(absl::string_view custom_id, int64_t number,
                             const absl::Status& error) {
  return router::JsonText({{"custom_id", std::string(custom_id)},
                           {"line", number},
                           {"error",
                            {{"code", absl::StatusCodeToString(error.code())},
                             {"message", std::string(error.message())}}}}) +
         "\n";
}

std::string DigestOf(const v1::GenerateRequest& request) {
  v1::GenerateRequest deciding = request;
  deciding.clear_priority();
  deciding.clear_service_tier();
  deciding.clear_deadline_s();
  deciding.clear_cache_salt();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    deciding.SerializeToCodedStream(&coded);
  }
  return router::Sha256Hex(bytes).substr(0, kDigestDigits);
}

absl::StatusOr<BatchOutput> ReadBatchOutput(std::istream& file, std::ostream* answers) {
  BatchOutput output;
  OutputLine line;
  for (int64_t number = 1; ReadLine(file, line); ++number) {
    const Json json = Json::parse(line.text, nullptr, /*allow_exceptions=*/false);
    if (!(line.whole || !json.is_discarded() ? IsOurs(json) : BeginsAsOurs(line.text))) {
      return absl::FailedPreconditionError(
          absl::StrCat("line ", number,
                       " is not an answer of a batch, expected a batch's output or a new file"));
    }
    if (json.is_discarded() || json.contains("error")) {
      output.must_be_repaired = true;
      continue;
    }
    output.must_be_repaired = output.must_be_repaired || !line.whole;
    output.answered[json["custom_id"].get<std::string>()] =
        json.value("request", Json()).is_string() ? json["request"].get<std::string>() : "";
    if (answers != nullptr) *answers << line.text << '\n';
  }
  if (file.bad()) return absl::UnavailableError("cannot be read");
  return output;
}

}  // namespace tandem::cli
