#include "router/front_end/http/chat_format.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "router/front_end/http/logprobs_json.h"
#include "router/front_end/http/tool_calls.h"

namespace tandem::router {
namespace {

// OpenAI's API takes ids of calls of at most 40 characters: beside these there is room for "call_",
// an answer's number of 3 digits and a call's of 6.
constexpr size_t kCallIdStemMax = 24;

// What the ids of an answer's calls begin with after "call_": the answer's id, or a hash of a long
// one. It depends on that id alone, so that a continued answer has the same ids.
std::string CallIdStem(absl::string_view answer_id) {
  const absl::string_view stem = absl::StripPrefix(answer_id, "chatcmpl-");
  if (stem.size() <= kCallIdStemMax) return std::string(stem);
  return absl::StrCat(absl::Hex(XXH64(stem.data(), stem.size(), 0), absl::kZeroPad16));
}

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
      : AnswerFormat(std::move(api), std::move(head), tokenizer),
        call_id_stem_(CallIdStem(head_.id)) {
    for (size_t i = 0; i < choices_.size(); ++i) {
      messages_.push_back({ToolCallFinder(api_)});
    }
  }

 private:
  struct Message {
    ToolCallFinder finder;
    Json calls = Json::array();
    Json logprobs = Json::array();
  };

  const char* object_name() const override { return "chat.completion"; }
  const char* chunk_name() const override { return "chat.completion.chunk"; }

  void OnStarted(size_t index, std::string* events) override {
    if (events == nullptr || !cursor_.NewEvent(index)) return;
    Event(index, R"({"role":"assistant","content":""})", "null", "", *events);
  }

  void OnPromptLogprobs(size_t, const v1::PromptLogprobs&, bool) override {}

  void OnDelta(size_t index, absl::string_view text, const Tokens& tokens,
               std::string* events) override {
    const auto count = static_cast<size_t>(tokens.size());
    const size_t received = cursor_.ReceivedTokens(count, index);
    Json logprobs = Json::array();
    if (api_.logprobs.has_value()) {
      for (size_t i = received; i < count; ++i) {
        logprobs.push_back(ChatLogprob({tokenizer_, api_.tokens_as_ids},
                                       tokens[static_cast<int>(i)], *api_.logprobs));
      }
    }
    std::string extra;
    if (api_.return_token_ids && received < count) {
      absl::StrAppend(&extra, ",\"token_ids\":", JsonText(TokenIdsJson(tokens, received)));
    }
    if (events == nullptr) {
      for (Json& one : logprobs) messages_[index].logprobs.push_back(std::move(one));
      logprobs.clear();
    }
    const std::string logprobs_text =
        logprobs.empty() ? "null"
                         : absl::StrCat("{\"content\":", JsonText(logprobs), ",\"refusal\":null}");
    Give(index, messages_[index].finder.AppendWithoutBlanks(text), logprobs_text, extra, events);
  }

  void OnFinished(size_t index, std::string* events) override {
    Give(index, messages_[index].finder.FlushWithoutBlanks(), "null", "", events);
    if (events == nullptr || !cursor_.NewEvent(index)) return;
    Event(index, "{}", "null",
          absl::StrCat(",\"stop_reason\":", JsonText(StopReason(choices_[index]))), *events,
          absl::StrCat("\"", FinishReason(index), "\""));
  }

  // New content and calls: kept for the whole object, or sent.
  void Give(size_t index, const ToolPieces& pieces, const std::string& logprobs,
            const std::string& extra, std::string* events) {
    Message& message = messages_[index];
    if (events == nullptr) {
      choices_[index].text += pieces.content;
    } else {
      const absl::string_view content = cursor_.NewText(pieces.content, index);
      if (!content.empty() || logprobs != "null" || !extra.empty()) {
        std::string delta = "{\"content\":";
        AppendJsonString(content, delta);
        Event(index, delta + "}", logprobs, extra, *events);
      }
    }
    for (const ToolCall& call : pieces.calls) {
      const size_t number = message.calls.size();
      message.calls.push_back(
          {{"id", absl::StrCat("call_", call_id_stem_, "_", index, "_", number)},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      if (events == nullptr || !cursor_.NewEvent(index)) continue;
      Json sent = {{"index", number}};
      sent.update(message.calls.back());
      Event(index, absl::StrCat("{\"tool_calls\":[", JsonText(sent), "]}"), "null", "", *events);
    }
  }

  void Event(size_t index, absl::string_view delta, absl::string_view logprobs,
             absl::string_view extra, std::string& events,
             absl::string_view finish_reason = "null") {
    BeginEvent(events);
    absl::StrAppend(&events, "\"index\":", index, ",\"delta\":", delta, ",\"logprobs\":");
    absl::StrAppend(&events, logprobs, ",\"finish_reason\":", finish_reason, extra);
    EndEvent(events);
  }

  std::string FinishReason(size_t index) const {
    const v1::FinishReason reason = choices_[index].reason;
    // A call that the model was made to write ends like an answer, as in OpenAI's API.
    const ToolCallFinder& finder = messages_[index].finder;
    const bool calls = finder.found() && !finder.cut() && api_.tool_mode != ToolMode::kNamed;
    return calls && reason == v1::FINISH_REASON_STOP ? "tool_calls" : FinishReasonText(reason);
  }

  Json TakeChoice(size_t index) override {
    const Choice& choice = choices_[index];
    Message& message = messages_[index];
    // Models here write no refusals apart from the text.
    Json answer = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!message.calls.empty()) {
      if (choice.text.empty()) answer["content"] = nullptr;
      answer["tool_calls"] = message.calls;
    }
    Json logprobs;
    if (api_.logprobs.has_value()) {
      logprobs = {{"content", std::move(message.logprobs)}, {"refusal", nullptr}};
    }
    Json object = {{"index", index},
                   {"message", std::move(answer)},
                   {"logprobs", std::move(logprobs)},
                   {"finish_reason", FinishReason(index)},
                   {"stop_reason", StopReason(choice)}};
    if (api_.return_token_ids) object["token_ids"] = choice.token_ids;
    return object;
  }

  const std::string call_id_stem_;
  // Bound: n (128), fixed at construction.
  std::vector<Message> messages_;
};

}  // namespace

std::unique_ptr<AnswerFormat> NewChatFormat(ApiRequest api, AnswerHead head,
                                            const model::Tokenizer& tokenizer) {
  return std::make_unique<ChatFormat>(std::move(api), std::move(head), tokenizer);
}

}  // namespace tandem::router
