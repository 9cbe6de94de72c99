// Writes a request's answer parts as OpenAI's API words them: server-sent events as they come, or
// one object at the end. The completion, the chat and the responses endpoint are the three
// implementations. Thread safety: none; its answer owns it, on the connection's I/O thread.
// Invariants: what a choice's events say joined up is what the whole object would have said.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/tokenizer/tokenizer.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/json_body.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// What every event and object of an answer says first.
struct AnswerHead {
  std::string id;
  int64_t created_s = 0;  // Unix time
  std::string model;
  std::string fingerprint;
};

struct UsageTotals {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

class AnswerFormat {
 public:
  // `tokenizer` outlives the format.
  AnswerFormat(ApiRequest api, AnswerHead head, const model::Tokenizer& tokenizer);
  virtual ~AnswerFormat() = default;

  // A part of prompt number `prompt`'s answer. With `events`, appends what the client is sent now.
  void Add(size_t prompt, const v1::GenerateResponse& part, std::string* events);
  // A delta that is text alone.
  void AddText(size_t prompt, int32_t sequence_index, absl::string_view text, std::string* events);
  // All parts are in: appends the stream's last events.
  virtual void EndEvents(std::string& events);
  // The answer broke off after events went out: appends the stream's last ones.
  virtual void FailEvents(const absl::Status& status, std::string& events);
  // All parts are in: the whole object.
  virtual std::string ToJson();
  // `status` with the endpoint's names for fields.
  virtual absl::Status TranslateFieldNames(const absl::Status& status) const { return status; }

  const UsageTotals& usage() const { return usage_; }

 protected:
  using Tokens = google::protobuf::RepeatedPtrField<v1::GeneratedToken>;
  // One choice of the answer, as far as it is known.
  struct Choice {
    size_t prompt = 0;
    std::string text;
    std::vector<int32_t> token_ids;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    std::string stop_string;
    v1::Finished finished;  // where its timing was asked for
  };
  struct Prompt {
    std::vector<int32_t> token_ids;
    Json logprobs;  // vLLM's prompt_logprobs, if asked for
  };

  // ---- what differs between the endpoints; `index` is the choice's
  virtual const char* object_name() const = 0;
  virtual const char* chunk_name() const = 0;
  virtual void OnStarted(size_t index, std::string* events) = 0;
  virtual void OnPromptLogprobs(size_t index, const v1::PromptLogprobs& part, bool first_part) = 0;
  virtual void OnDelta(size_t index, absl::string_view text, const Tokens& tokens,
                       std::string* events) = 0;
  virtual void OnFinished(size_t index, std::string* events) = 0;
  virtual Json ChoiceJson(size_t index) const = 0;

  // Begins an event with one choice, whose members the caller appends as JSON text.
  void BeginEvent(std::string& events);
  void EndEvent(std::string& events) const;
  // "stop", "length", …
  static std::string FinishReasonText(v1::FinishReason reason);
  // ,"stop_reason":… of a finished choice.
  static Json StopReason(const Choice& choice);
  // The token ids of a delta, where the client asked for them.
  static Json TokenIdsJson(const Tokens& tokens);
  // Where the time went and who served it, one element a prompt.
  Json TimingJson() const;

  const ApiRequest api_;
  const AnswerHead head_;
  const model::Tokenizer& tokenizer_;
  // Bound: kPromptsMax (1,024), fixed at construction.
  std::vector<Prompt> prompts_;
  // Bound: n (128) for each prompt, fixed at construction.
  std::vector<Choice> choices_;  // n for each prompt

 private:
  // Where the choice of a prompt's sequence is; nullopt for one the client did not ask for.
  std::optional<size_t> IndexOf(size_t prompt, int32_t sequence) const;
  Json UsageJson(const UsageTotals& usage) const;
  UsageTotals UsageSoFar() const;

  std::string event_begin_;  // of every event, up to its choice; made with the first
  UsageTotals usage_;
};

std::unique_ptr<AnswerFormat> NewCompletionFormat(ApiRequest api, AnswerHead head,
                                                  const model::Tokenizer& tokenizer);
std::unique_ptr<AnswerFormat> NewChatFormat(ApiRequest api, AnswerHead head,
                                            const model::Tokenizer& tokenizer);
std::unique_ptr<AnswerFormat> NewResponseFormat(ApiRequest api, AnswerHead head,
                                                const model::Tokenizer& tokenizer);

}  // namespace tandem::router
