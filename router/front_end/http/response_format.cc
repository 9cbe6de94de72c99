#include "router/front_end/http/response_format.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "router/front_end/http/logprobs_json.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/http/tool_calls.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kIdPrefix = "resp_";

bool IsBlank(absl::string_view text) {
  return text.find_first_not_of(" \t\r\n") == absl::string_view::npos;
}

// An event's log-probabilities have no bytes.
Json WithoutBytes(const Json& logprobs) {
  Json list = Json::array();
  for (const Json& one : logprobs) {
    Json tops = Json::array();
    for (const Json& top : one["top_logprobs"]) {
      tops.push_back({{"token", top["token"]}, {"logprob", top["logprob"]}});
    }
    list.push_back(
        {{"token", one["token"]}, {"logprob", one["logprob"]}, {"top_logprobs", std::move(tops)}});
  }
  return list;
}

// The answer is a list of items: messages and calls in the order in which the model wrote them.
// Items are made alike for a stream and for the whole object; a stream is told of each step.
class ResponseFormat final : public AnswerFormat {
 public:
  ResponseFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
      : AnswerFormat(std::move(api), std::move(head), tokenizer),
        finder_(api_),
        id_stem_(absl::StartsWith(head_.id, kIdPrefix) ? head_.id.substr(kIdPrefix.size())
                                                       : head_.id) {
    api_.response->PackSettings();
  }

  void EndEvents(std::string& events) override {
    const std::string status = Status();
    Event("response." + status, ",\"response\":" + KeptText(status), events);
  }

  void FailEvents(const absl::Status& status, std::string& events) override {
    if (open_) Close("incomplete", nullptr);
    error_ = {{"code", ErrorCode(HttpStatusOf(status))},
              {"message", std::string(status.message())}};
    // Without an id: what the client had received before is what it has.
    WriteEvent("response.failed", ",\"response\":" + ObjectText("failed"), events);
  }

  std::string ToJson() override { return KeptText(Status()); }

 private:
  absl::Status FromChatNames(const absl::Status& status) const override {
    return ToResponseFieldNames(status);
  }
  const char* object_name() const override { return "response"; }
  const char* chunk_name() const override { return "response"; }
  Json TakeChoice(size_t) override { return Json(); }
  void OnPromptLogprobs(size_t, const v1::PromptLogprobs&, bool) override {}

  void OnStarted(size_t, std::string* events) override {
    if (events == nullptr) return;
    const std::string response = ",\"response\":" + ObjectText("in_progress");
    Event("response.created", response, *events);
    Event("response.in_progress", response, *events);
  }

  void OnDelta(size_t, absl::string_view text, const Tokens& tokens, std::string* events) override {
    if (api_.logprobs.has_value()) {
      for (const auto& token : tokens) {
        waiting_logprobs_.push_back(
            ChatLogprob({tokenizer_, api_.tokens_as_ids}, token, *api_.logprobs));
      }
    }
    finder_.AppendInOrder(text, [&](const ToolPieces& pieces) { Give(pieces, events); });
  }

  void OnFinished(size_t, std::string* events) override {
    Give(finder_.Flush(), events);
    // White space between calls is not a message, but an answer of white space alone is.
    if (calls_ == 0 && !open_) Open(events);
    if (!open_) return;
    if (!held_.empty() || !waiting_logprobs_.empty()) Extend(std::exchange(held_, ""), events);
    Close(Cut() ? "incomplete" : "completed", events);
  }

  bool Cut() const { return choices_[0].reason != v1::FINISH_REASON_STOP; }

  void Give(const ToolPieces& pieces, std::string* events) {
    if (!pieces.content.empty()) AddText(pieces.content, events);
    for (const ToolCall& call : pieces.calls) AddCall(call, events);
  }

  void AddText(const std::string& text, std::string* events) {
    held_ += text;
    if (!open_ && api_.tool_mode != ToolMode::kNone && IsBlank(held_)) return;
    if (!open_) Open(events);
    Extend(std::exchange(held_, ""), events);
  }

  // ---- the message that is being written

  void Open(std::string* events) {
    open_ = true;
    item_id_ = absl::StrCat("msg_", id_stem_, "_", output_.size());
    if (events == nullptr) return;
    Event("response.output_item.added",
          AtItem("item", {{"id", item_id_},
                          {"type", "message"},
                          {"status", "in_progress"},
                          {"role", "assistant"},
                          {"content", Json::array()}}),
          *events);
    at_content_ = ",\"item_id\":";
    AppendJsonString(item_id_, at_content_);
    absl::StrAppend(&at_content_, ",\"output_index\":", output_.size(), ",\"content_index\":0");
    Event("response.content_part.added",
          absl::StrCat(at_content_, ",\"part\":", JsonText(Part("", Json::array()))), *events);
  }

  void Extend(const std::string& text, std::string* events) {
    text_ += text;
    Json logprobs = std::exchange(waiting_logprobs_, Json::array());
    if (events != nullptr) TextEvent(text, logprobs, *events);
    for (Json& one : logprobs) logprobs_.push_back(std::move(one));
  }

  void TextEvent(absl::string_view text, Json logprobs, std::string& events) {
    text = cursor_.NewText(text);
    const size_t received = cursor_.ReceivedTokens(logprobs.size());
    logprobs.erase(logprobs.begin(), logprobs.begin() + static_cast<std::ptrdiff_t>(received));
    if (text.empty() && logprobs.empty()) return;
    std::string members = absl::StrCat(at_content_, ",\"delta\":");
    AppendJsonString(text, members);
    absl::StrAppend(&members,
                    ",\"logprobs\":", logprobs.empty() ? "[]" : JsonText(WithoutBytes(logprobs)));
    WriteEvent("response.output_text.delta", members, events, /*has_id=*/true);
  }

  void Close(const char* status, std::string* events) {
    Json part = Part(std::exchange(text_, ""), std::exchange(logprobs_, Json::array()));
    if (events != nullptr) {
      Event("response.output_text.done",
            absl::StrCat(at_content_, ",\"text\":", JsonText(part["text"]),
                         ",\"logprobs\":", JsonText(WithoutBytes(part["logprobs"]))),
            *events);
      Event("response.content_part.done", absl::StrCat(at_content_, ",\"part\":", JsonText(part)),
            *events);
    }
    Json item = {{"id", item_id_},
                 {"type", "message"},
                 {"status", status},
                 {"role", "assistant"},
                 {"content", Json::array({std::move(part)})}};
    if (events != nullptr) Event("response.output_item.done", AtItem("item", item), *events);
    open_ = false;
    output_.push_back(std::move(item));
  }

  static Json Part(const std::string& text, Json logprobs) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", Json::array()},
            {"logprobs", std::move(logprobs)}};
  }

  // A call is known as a whole, as in a chat's stream.
  void AddCall(const ToolCall& call, std::string* events) {
    if (open_) Close("completed", events);
    // These were the call's.
    held_.clear();
    waiting_logprobs_ = Json::array();
    const std::string id = absl::StrCat("fc_", id_stem_, "_", output_.size());
    Json item = {{"id", id},
                 {"type", "function_call"},
                 {"status", "in_progress"},
                 {"call_id", absl::StrCat("call_", id_stem_, "_", calls_++)},
                 {"name", call.name},
                 {"arguments", ""}};
    const std::string added = events == nullptr ? "" : AtItem("item", item);
    item["status"] = call.whole ? "completed" : "incomplete";
    item["arguments"] = call.arguments;
    if (events != nullptr) {
      std::string at = ",\"item_id\":";
      AppendJsonString(id, at);
      absl::StrAppend(&at, ",\"output_index\":", output_.size());
      const std::string arguments = JsonText(item["arguments"]);
      Event("response.output_item.added", added, *events);
      Event("response.function_call_arguments.delta", absl::StrCat(at, ",\"delta\":", arguments),
            *events);
      Event("response.function_call_arguments.done", absl::StrCat(at, ",\"arguments\":", arguments),
            *events);
      Event("response.output_item.done", AtItem("item", item), *events);
    }
    output_.push_back(std::move(item));
  }

  // ---- events and the object

  std::string AtItem(const char* name, const Json& item) const {
    return absl::StrCat(",\"output_index\":", output_.size(), ",\"", name, "\":", JsonText(item));
  }

  // An event without text. `members`: JSON text of its further members, each after a comma.
  void Event(const std::string& type, absl::string_view members, std::string& events) {
    if (cursor_.NewEvent()) WriteEvent(type, members, events, /*has_id=*/true);
  }

  void WriteEvent(const std::string& type, absl::string_view members, std::string& events,
                  bool has_id = false) {
    const int64_t number = cursor_.NextNumber();  // before the id, which counts this event
    if (has_id) cursor_.AppendId(events);
    absl::StrAppend(&events, "event: ", type, "\ndata: {\"type\":\"", type,
                    "\",\"sequence_number\":");
    absl::StrAppend(&events, number, members, "}\n\n");
  }

  std::string Status() {
    switch (choices_[0].reason) {
      case v1::FINISH_REASON_STOP:
        return "completed";
      case v1::FINISH_REASON_LENGTH:
        return "incomplete";
      default:
        error_ = {{"code", "server_error"},
                  {"message", "the answer was ended before it was complete"}};
        return "failed";
    }
  }

  // The last object, which is kept if that was asked for.
  std::string KeptText(const std::string& status) {
    std::string text = ObjectText(status);
    ResponseParts& parts = *api_.response;
    if (parts.keep && status != "failed") parts.keep(head_.id, text, std::move(parts.items));
    return text;
  }

  static const char* ErrorCode(int http_status) {
    if (http_status == 429) return "rate_limit_exceeded";
    return http_status < 499 ? "invalid_prompt" : "server_error";
  }

  // Takes the items: the last object is made once.
  std::string ObjectText(const std::string& status) {
    const bool over = status != "in_progress";
    Json object = {{"id", head_.id},
                   {"object", "response"},
                   {"created_at", head_.created_s},
                   {"status", status},
                   {"completed_at", nullptr},
                   {"error", error_},
                   {"incomplete_details", nullptr},
                   {"model", head_.model},
                   {"output", std::exchange(output_, Json::array())},
                   {"usage", over && status != "failed" ? UsageObject() : Json()}};
    if (status == "completed") {
      object["completed_at"] = absl::ToUnixSeconds(RealClock().Now());
    }
    if (status == "incomplete") object["incomplete_details"] = {{"reason", "max_output_tokens"}};
    Json last = {{"service_tier", service_tier_.empty() ? "auto" : service_tier_}};
    if (over && api_.timing) last["timing"] = TimingJson();
    std::string text = JsonText(object);
    text.pop_back();  // the brace
    absl::StrAppend(&text, ",", api_.response->settings_text, ",", JsonText(last).substr(1));
    return text;
  }

  Json UsageObject() const {
    return {{"input_tokens", usage().prompt_tokens},
            {"input_tokens_details",
             {{"cached_tokens", usage().cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage().completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage().prompt_tokens + usage().completion_tokens}};
  }

  ToolCallFinder finder_;
  const std::string id_stem_;  // of the items' ids
  int calls_ = 0;
  // Bound, as of all below: what max_output_tokens can hold.
  Json output_ = Json::array();  // finished items
  Json error_;
  // The open message: its id, its text so far, and where its events say they belong.
  bool open_ = false;
  std::string item_id_, text_, at_content_;
  Json logprobs_ = Json::array();
  // Blanks that may stand between calls, and log-probabilities of text that is not out yet.
  std::string held_;
  Json waiting_logprobs_ = Json::array();
};

}  // namespace

std::unique_ptr<AnswerFormat> NewResponseFormat(ApiRequest api, AnswerHead head,
                                                const model::Tokenizer& tokenizer) {
  return std::make_unique<ResponseFormat>(std::move(api), std::move(head), tokenizer);
}

}  // namespace tandem::router
