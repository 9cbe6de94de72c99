#include "cli/bench_serve/event_stream.h"

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

constexpr size_t kMessageBytesMax = 300;

Json Parse(absl::string_view text) {
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

// The text after `"key":` and spaces, or an empty view without the key. Quotes inside a string are
// escaped, so what looks like a key is one.
absl::string_view ValueOf(absl::string_view data, absl::string_view quoted_key) {
  for (size_t at = 0; (at = data.find(quoted_key, at)) != absl::string_view::npos;) {
    at += quoted_key.size();
    absl::string_view rest = data.substr(at);
    while (absl::ConsumePrefix(&rest, " ")) {
    }
    if (!absl::ConsumePrefix(&rest, ":")) continue;
    while (absl::ConsumePrefix(&rest, " ")) {
    }
    return rest;
  }
  return {};
}

bool IsText(absl::string_view value) {
  return value.size() >= 2 && value[0] == '"' && value[1] != '"';
}

int32_t Count(const Json& usage, const char* key) {
  const auto found = usage.find(key);
  return found != usage.end() && found->is_number_integer() ? found->get<int32_t>() : 0;
}

std::string MessageOf(const Json& json) {
  if (!json.is_object()) return "";
  const auto error = json.find("error");
  const Json& holder = error != json.end() && error->is_object() ? *error : json;
  const auto message = holder.find("message");
  if (message != holder.end() && message->is_string()) return message->get<std::string>();
  return error != json.end() && error->is_string() ? error->get<std::string>() : "";
}

}  // namespace

absl::Status EventStreamReader::Append(absl::string_view bytes,
                                       const std::function<void(absl::string_view)>& on_data) {
  for (size_t end = 0; (end = bytes.find('\n')) != absl::string_view::npos;) {
    const absl::string_view piece = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (line_.empty()) {
      OnLine(piece, on_data);
      continue;
    }
    line_.append(piece.data(), piece.size());
    OnLine(line_, on_data);
    line_.clear();
  }
  line_.append(bytes.data(), bytes.size());
  if (line_.size() + data_.size() > kEventBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server sent an event of more than ", kEventBytesMax, " bytes"));
  }
  return absl::OkStatus();
}

void EventStreamReader::OnLine(absl::string_view line,
                               const std::function<void(absl::string_view)>& on_data) {
  line = absl::StripSuffix(line, "\r");
  if (line.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!absl::ConsumePrefix(&line, "data:")) return;
  absl::ConsumePrefix(&line, " ");
  if (has_data_) data_ += '\n';
  data_.append(line.data(), line.size());
  has_data_ = true;
}

AnswerEvent ReadAnswerEvent(absl::string_view data) {
  AnswerEvent event;
  event.done = data == "[DONE]";
  event.has_text = IsText(ValueOf(data, "\"text\"")) || IsText(ValueOf(data, "\"content\""));
  const bool has_usage = absl::StartsWith(ValueOf(data, "\"usage\""), "{");
  const absl::string_view error = ValueOf(data, "\"error\"");
  if (!has_usage && (error.empty() || absl::StartsWith(error, "null"))) return event;
  const Json json = Parse(data);
  if (!json.is_object()) {
    event.error = "an event that is not JSON";
    return event;
  }
  if (const auto found = json.find("error"); found != json.end() && !found->is_null()) {
    event.error = MessageOf(json);
    if (event.error.empty()) event.error = "an error without a message";
  }
  if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
    event.usage = AnswerUsage{.prompt_tokens = Count(*usage, "prompt_tokens"),
                              .output_tokens = Count(*usage, "completion_tokens"),
                              .cached_tokens = 0};
    if (const auto tier = json.find("service_tier"); tier != json.end() && tier->is_string())
      event.usage->service_tier = tier->get<std::string>();
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) {
      event.usage->cached_tokens = Count(*details, "cached_tokens");
    }
  }
  return event;
}

std::string ErrorMessageOf(absl::string_view body) {
  const std::string message = MessageOf(Parse(body));
  return message.empty() ? std::string(body.substr(0, kMessageBytesMax)) : message;
}

}  // namespace tandem::cli
