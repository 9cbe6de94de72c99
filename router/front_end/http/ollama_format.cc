#include "router/front_end/http/ollama_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/ollama_request.h"
#include "router/front_end/http/tool_calls.h"

namespace tandem::router {
namespace {

int64_t Nanoseconds(double ms) { return static_cast<int64_t>(std::max(ms, 0.0) * 1e6); }

class OllamaFormat final : public AnswerFormat {
 public:
  OllamaFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
      : AnswerFormat(std::move(api), std::move(head), tokenizer),
        chat_(api_.kind == ApiKind::kOllamaChat),
        model_(api_.model.empty() ? head_.model : api_.model),
        finder_(api_) {}

  const char* stream_type() const override { return "application/x-ndjson"; }

  void EndEvents(std::string& events) override {
    if (!cursor_.NewEvent()) return;
    Json line = Line("", Json::array());
    AddEnd(line);
    AppendLine(std::move(line), events);
  }

  void FailEvents(const absl::Status& status, std::string& events) override {
    absl::StrAppend(&events, OllamaErrorJson(status.message()), "\n");
  }

  std::string ToJson() override {
    Json object = Line(choices_[0].text, calls_);
    AddEnd(object);
    return JsonText(object);
  }

 private:
  absl::Status FromChatNames(const absl::Status& status) const override {
    return ToOllamaFieldNames(status, api_.kind);
  }
  const char* object_name() const override { return "chat"; }
  const char* chunk_name() const override { return "chat"; }
  bool needs_timing() const override { return true; }
  Json TakeChoice(size_t) override { return Json(); }
  void OnStarted(size_t, std::string*) override {}
  void OnPromptLogprobs(size_t, const v1::PromptLogprobs&, bool) override {}

  void OnDelta(size_t, absl::string_view text, const Tokens&, std::string* events) override {
    Give(finder_.AppendWithoutBlanks(text), events);
  }
  void OnFinished(size_t, std::string* events) override {
    Give(finder_.FlushWithoutBlanks(), events);
  }

  void Give(const ToolPieces& pieces, std::string* events) {
    Json calls = Json::array();
    for (const ToolCall& call : pieces.calls) {
      // Ollama's arguments are an object. Those of a call that is none are kept as its one member.
      absl::StatusOr<Json> arguments = ParseModelJson(call.arguments);
      Json object = arguments.ok() ? *std::move(arguments) : Json{{"arguments", call.arguments}};
      calls.push_back({{"function", {{"name", call.name}, {"arguments", std::move(object)}}}});
    }
    if (events == nullptr) {
      choices_[0].text += pieces.content;
      for (Json& call : calls) calls_.push_back(std::move(call));
      return;
    }
    const std::string content(cursor_.NewText(pieces.content));
    Json fresh = Json::array();
    for (Json& call : calls) {
      if (cursor_.NewEvent()) fresh.push_back(std::move(call));
    }
    if (!content.empty() || !fresh.empty()) AppendLine(Line(content, fresh), *events);
  }

  // A line has no place for an id but a member, which it has if the client asked for ids.
  void AppendLine(Json line, std::string& events) const {
    std::string id = cursor_.Id();
    if (!id.empty()) line["event_id"] = std::move(id);
    absl::StrAppend(&events, JsonText(line), "\n");
  }

  Json Line(const std::string& text, const Json& calls) const {
    Json line = {{"model", model_}, {"created_at", OllamaTime(RealClock().Now())}};
    if (chat_) {
      line["message"] = {{"role", "assistant"}, {"content", text}};
      if (!calls.empty()) line["message"]["tool_calls"] = calls;
    } else {
      line["response"] = text;
    }
    line["done"] = false;
    return line;
  }

  // The router has no time of its own for loading: `load_duration` is the wait for a place.
  void AddEnd(Json& line) const {
    const v1::Timing& timing = choices_[0].finished.timing();
    line["done"] = true;
    line["done_reason"] = FinishReasonText(choices_[0].reason);
    line["total_duration"] = Nanoseconds(timing.total_ms());
    line["load_duration"] = Nanoseconds(timing.queue_ms());
    line["prompt_eval_count"] = usage().prompt_tokens;
    line["prompt_eval_duration"] = Nanoseconds(timing.first_token_ms() - timing.queue_ms());
    line["eval_count"] = usage().completion_tokens;
    line["eval_duration"] = Nanoseconds(timing.total_ms() - timing.first_token_ms());
  }

  const bool chat_;
  const std::string model_;
  ToolCallFinder finder_;
  // Bound: what max_tokens can hold.
  Json calls_ = Json::array();
};

}  // namespace

std::unique_ptr<AnswerFormat> NewOllamaFormat(ApiRequest api, AnswerHead head,
                                              const model::Tokenizer& tokenizer) {
  return std::make_unique<OllamaFormat>(std::move(api), std::move(head), tokenizer);
}

Json OllamaLoaded(ApiKind kind, const std::string& model, const std::string& reason,
                  absl::Time now) {
  Json answer = {{"model", model}, {"created_at", OllamaTime(now)}};
  if (kind == ApiKind::kOllamaChat) {
    answer["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    answer["response"] = "";
  }
  answer["done"] = true;
  answer["done_reason"] = reason;
  return answer;
}

std::string OllamaTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E9SZ", time, absl::UTCTimeZone());
}

}  // namespace tandem::router
