#include "router/front_end/http/completion_format.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/front_end/http/logprobs_json.h"

namespace tandem::router {
namespace {

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer)
      : AnswerFormat(std::move(api), std::move(head), tokenizer) {
    if (!api_.logprobs.has_value()) return;
    for (size_t i = 0; i < choices_.size(); ++i) logprobs_.push_back(NewLogprobs(!api_.echo));
    whole_logprobs_.resize(choices_.size());
  }

  void SetContinuesText(size_t prompt, bool continues) override {
    if (api_.echo) return;
    for (size_t i = 0; i < logprobs_.size(); ++i) {
      if (choices_[i].prompt == prompt) logprobs_[i] = NewLogprobs(continues);
    }
  }

 private:
  std::unique_ptr<CompletionLogprobs> NewLogprobs(bool continues_text) const {
    const LogprobsStyle style = {tokenizer_, api_.tokens_as_ids};
    const CompletionLogprobs::TextOptions text = {.skip_special_tokens = !api_.keep_special_tokens,
                                                  .continues_text = continues_text};
    return std::make_unique<CompletionLogprobs>(style, *api_.logprobs, text);
  }

  const char* object_name() const override { return "text_completion"; }
  const char* chunk_name() const override { return "text_completion"; }

  void OnStarted(size_t, std::string*) override {}

  void OnPromptLogprobs(size_t index, const v1::PromptLogprobs& part, bool first_part) override {
    if (!echoes_logprobs()) return;
    const Prompt& prompt = prompts_[choices_[index].prompt];
    if (first_part && !prompt.token_ids.empty()) logprobs_[index]->AddFirst(prompt.token_ids[0]);
    for (const auto& token : part.tokens()) logprobs_[index]->Add(token);
  }

  void OnDelta(size_t index, absl::string_view text, const Tokens& tokens,
               std::string* events) override {
    // The tokens of an echoed prompt come before the answer's.
    const size_t echoed = logprobs_.empty() ? 0 : logprobs_[index]->size();
    if (!logprobs_.empty()) {
      for (const auto& token : tokens) logprobs_[index]->Add(token);
    }
    if (events == nullptr) {
      choices_[index].text.append(text.data(), text.size());
      return;
    }
    text = cursor_.NewText(text, index);
    const size_t described = echoed + static_cast<size_t>(tokens.size());
    const size_t received = cursor_.ReceivedTokens(described, index);
    // Taken where nothing is sent, too: the next tokens begin a list of their own.
    const std::string logprobs =
        logprobs_.empty() ? "null" : JsonText(logprobs_[index]->Take(received));
    const bool describes = api_.return_token_ids || !logprobs_.empty();
    if (text.empty() && !(describes && received < described)) return;
    BeginEvent(*events);
    absl::StrAppend(events, "\"index\":", index, ",\"text\":");
    AppendJsonString(text, *events);
    absl::StrAppend(events, ",\"logprobs\":", logprobs, ",\"finish_reason\":null");
    if (api_.return_token_ids) {
      const size_t skipped = received > echoed ? received - echoed : 0;
      absl::StrAppend(events, ",\"token_ids\":", JsonText(TokenIdsJson(tokens, skipped)));
    }
    EndEvent(*events);
  }

  void OnFinished(size_t index, std::string* events) override {
    const Choice& choice = choices_[index];
    if (events == nullptr) {
      if (!logprobs_.empty()) whole_logprobs_[index] = logprobs_[index]->Take();
      return;
    }
    if (!cursor_.NewEvent(index)) return;
    BeginEvent(*events);
    absl::StrAppend(
        events, "\"index\":", index, ",\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"",
        FinishReasonText(choice.reason), "\",\"stop_reason\":", JsonText(StopReason(choice)));
    if (api_.return_token_ids) {
      absl::StrAppend(events,
                      ",\"prompt_token_ids\":", JsonText(Json(prompts_[choice.prompt].token_ids)));
    }
    EndEvent(*events);
  }

  Json TakeChoice(size_t index) override {
    const Choice& choice = choices_[index];
    Json object = {{"index", index},
                   {"text", choice.text},
                   {"logprobs", logprobs_.empty() ? Json() : std::move(whole_logprobs_[index])},
                   {"finish_reason", FinishReasonText(choice.reason)},
                   {"stop_reason", StopReason(choice)}};
    Prompt& prompt = prompts_[choice.prompt];
    if (api_.return_token_ids) {
      object["token_ids"] = choice.token_ids;
      object["prompt_token_ids"] = prompt.token_ids;
    }
    if (prompt.logprobs.is_null()) return object;
    const bool last = (index + 1) % static_cast<size_t>(api_.n) == 0;  // of this prompt
    object["prompt_logprobs"] = last ? std::move(prompt.logprobs) : prompt.logprobs;
    return object;
  }

  // Bound: one for each choice.
  std::vector<std::unique_ptr<CompletionLogprobs>>
      logprobs_;  // by choice; empty when not asked for
  std::vector<Json> whole_logprobs_;
};

}  // namespace

std::unique_ptr<AnswerFormat> NewCompletionFormat(ApiRequest api, AnswerHead head,
                                                  const model::Tokenizer& tokenizer) {
  return std::make_unique<CompletionFormat>(std::move(api), std::move(head), tokenizer);
}

}  // namespace tandem::router
