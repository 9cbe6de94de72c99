#include "router/front_end/http/anthropic_format.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/core/service_tier.h"
#include "router/front_end/http/anthropic_request.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/tool_calls.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kMessageIdPrefix = "msg_";

bool HasOnlyBlanks(absl::string_view text) {
  return text.find_first_not_of(" \t\r\n") == absl::string_view::npos;
}

class AnthropicFormat final : public AnswerFormat {
 public:
  AnthropicFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
      : AnswerFormat(std::move(api), std::move(head), tokenizer),
        finder_(api_),
        id_stem_(absl::StartsWith(head_.id, kMessageIdPrefix)
                     ? head_.id.substr(kMessageIdPrefix.size())
                     : head_.id) {}

  void EndEvents(std::string& events) override {
    Event("message_delta",
          {{"delta", {{"stop_reason", StopReasonJson()}, {"stop_sequence", StopSequence()}}},
           {"usage", UsageObject()}},
          events);
    Event("message_stop", Json::object(), events);
  }

  void FailEvents(const absl::Status& status, std::string& events) override {
    absl::StrAppend(&events, "event: error\ndata: ",
                    AnthropicErrorJson(HttpStatusOf(status), status.message(), ""), "\n\n");
  }

  std::string ToJson() override {
    Json message = Message();
    message["content"] = blocks_;
    message["stop_reason"] = StopReasonJson();
    message["stop_sequence"] = StopSequence();
    return JsonText(message);
  }

 private:
  absl::Status FromChatNames(const absl::Status& status) const override {
    return ToAnthropicFieldNames(status);
  }
  const char* object_name() const override { return "message"; }
  const char* chunk_name() const override { return "message"; }
  Json TakeChoice(size_t) override { return Json(); }
  void OnPromptLogprobs(size_t, const v1::PromptLogprobs&, bool) override {}

  void OnStarted(size_t, std::string* events) override {
    if (events == nullptr) return;
    Event("message_start", {{"message", Message()}}, *events);
    Event("ping", Json::object(), *events);
  }

  void OnDelta(size_t, absl::string_view text, const Tokens&, std::string* events) override {
    finder_.AppendInOrder(text, [&](const ToolPieces& pieces) { Give(pieces, events); });
  }

  void OnFinished(size_t, std::string* events) override {
    Give(finder_.Flush(), events);
    // White space after a call is not text, but an answer of white space alone is.
    if (!open_ && calls_ == 0 && !held_.empty()) Extend(std::exchange(held_, ""), events);
    if (open_) Close(events);
  }

  void Give(const ToolPieces& pieces, std::string* events) {
    if (!pieces.content.empty()) AddText(pieces.content, events);
    for (const ToolCall& call : pieces.calls) AddCall(call, events);
  }

  void AddText(const std::string& text, std::string* events) {
    held_ += text;
    if (!open_ && api_.tool_mode != ToolMode::kNone && HasOnlyBlanks(held_)) return;
    Extend(std::exchange(held_, ""), events);
  }

  // Adds to the open block of text; opens one if none is.
  void Extend(const std::string& text, std::string* events) {
    if (!open_ && events != nullptr) {
      BlockEvent("content_block_start", {"content_block", {{"type", "text"}, {"text", ""}}},
                 *events);
    }
    open_ = true;
    text_ += text;
    if (events == nullptr) return;
    const std::string fresh(cursor_.NewText(text));
    if (fresh.empty()) return;
    WriteEvent("content_block_delta",
               {{"index", blocks_.size()}, {"delta", {{"type", "text_delta"}, {"text", fresh}}}},
               *events);
  }

  void Close(std::string* events) {
    if (events != nullptr) BlockEvent("content_block_stop", {}, *events);
    open_ = false;
    blocks_.push_back({{"type", "text"}, {"text", std::exchange(text_, "")}});
  }

  // A call is known as a whole, as in a chat's stream.
  void AddCall(const ToolCall& call, std::string* events) {
    if (open_) Close(events);
    held_.clear();  // blanks between calls
    Json block = {{"type", "tool_use"},
                  {"id", absl::StrCat("toolu_", id_stem_, "_", calls_++)},
                  {"name", call.name},
                  {"input", Json::object()}};
    if (events != nullptr) {
      BlockEvent("content_block_start", {"content_block", block}, *events);
      BlockEvent("content_block_delta",
                 {"delta", {{"type", "input_json_delta"}, {"partial_json", call.arguments}}},
                 *events);
      BlockEvent("content_block_stop", {}, *events);
    }
    // Arguments that were cut off are no object: `stop_reason` says so.
    absl::StatusOr<Json> input = ParseModelJson(call.arguments);
    if (input.ok()) block["input"] = *std::move(input);
    blocks_.push_back(std::move(block));
  }

  // ---- events and the object

  // An event without text.
  void Event(const char* type, const Json& members, std::string& events) {
    if (cursor_.NewEvent()) WriteEvent(type, members, events);
  }

  void WriteEvent(const char* type, const Json& members, std::string& events) {
    cursor_.AppendId(events);
    Json event = {{"type", type}};
    event.update(members);
    absl::StrAppend(&events, "event: ", type, "\ndata: ", JsonText(event), "\n\n");
  }

  // An event of the block that is being written; `member` has an empty name where there is none.
  void BlockEvent(const char* type, const std::pair<std::string, Json>& member,
                  std::string& events) {
    Json members = {{"index", blocks_.size()}};
    if (!member.first.empty()) members[member.first] = member.second;
    Event(type, members, events);
  }

  // The message as it begins.
  Json Message() const {
    Json message = {{"id", head_.id},           {"type", "message"},
                    {"role", "assistant"},      {"model", head_.model},
                    {"content", Json::array()}, {"stop_reason", nullptr},
                    {"stop_sequence", nullptr}, {"usage", UsageObject()}};
    if (!service_tier_.empty())
      message["usage"]["service_tier"] = service_tier_ == kDefaultTier ? "standard" : service_tier_;
    return message;
  }

  Json StopReasonJson() const {
    const Choice& choice = choices_[0];
    if (choice.reason == v1::FINISH_REASON_LENGTH) return "max_tokens";
    if (choice.reason != v1::FINISH_REASON_STOP) return nullptr;  // aborted
    if (calls_ > 0 && !finder_.cut()) return "tool_use";
    return choice.stop_string.empty() ? "end_turn" : "stop_sequence";
  }

  Json StopSequence() const {
    return StopReasonJson() == "stop_sequence" ? Json(choices_[0].stop_string) : Json();
  }

  // Anthropic counts cached tokens of the prompt apart from the others. Until the end of an answer
  // none are known to be cached.
  Json UsageObject() const {
    return {{"input_tokens", usage().prompt_tokens - usage().cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage().cached_tokens},
            {"output_tokens", usage().completion_tokens}};
  }

  ToolCallFinder finder_;
  const std::string id_stem_;  // of the calls' ids
  int calls_ = 0;
  // Bound, as of all below: what max_tokens can hold.
  Json blocks_ = Json::array();  // finished ones
  bool open_ = false;            // a text is being written
  std::string text_;             // of the open block, so far
  std::string held_;             // blanks that may stand between calls
};

}  // namespace

std::unique_ptr<AnswerFormat> NewAnthropicFormat(ApiRequest api, AnswerHead head,
                                                 const model::Tokenizer& tokenizer) {
  return std::make_unique<AnthropicFormat>(std::move(api), std::move(head), tokenizer);
}

}  // namespace tandem::router
