// Writes the parts of an answer in the JSON of the client's API: as events while they come, or as
// one object at the end. There is an implementation for each endpoint: completion_format.h,
// chat_format.h, response_format.h, ollama_format.h, anthropic_format.h.
// Thread safety: none. Owner: the answer (api_answer.h), on the I/O thread of its connection.
// Invariant: a choice's events, joined, hold the same text and tokens as the whole object would.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/tokenizer/tokenizer.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// The members that begin every event and object of an answer.
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

  // Takes a part of the answer to prompt number `prompt`. Appends the events to send now to
  // `events`; nullptr: the client does not stream.
  void Add(size_t prompt, const v1::GenerateResponse& part, std::string* events);
  // Takes a delta of text without tokens, like Add.
  void AddText(size_t prompt, int32_t sequence_index, absl::string_view text, std::string* events);
  // Appends the stream's last events. REQUIRES: all parts were added.
  virtual void EndEvents(std::string& events);
  // Appends the last events of a stream that failed with `status` after its first event.
  virtual void FailEvents(const absl::Status& status, std::string& events);
  // The whole object. REQUIRES: all parts were added.
  virtual std::string ToJson();
  // The content type of a stream.
  virtual const char* stream_type() const { return "text/event-stream; charset=utf-8"; }
  // `status`, in which the fields have the names that the client's body gave them.
  absl::Status TranslateFieldNames(const absl::Status& status) const {
    return FromChatNames(RenameField(status, api_.field_names));
  }

  // Before anything is added: whether the answers to this prompt go on with a text
  // (StreamingDetokenizer::Options).
  virtual void SetContinuesText(size_t /*prompt*/, bool /*continues*/) {}
  const UsageTotals& usage() const { return usage_; }

 protected:
  using Tokens = google::protobuf::RepeatedPtrField<v1::GeneratedToken>;
  // One choice of the answer, as received so far.
  struct Choice {
    size_t prompt = 0;
    std::string text;
    std::vector<int32_t> token_ids;
    v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
    std::string stop_string;
    std::optional<int32_t> stop_token_id;
    v1::Finished finished;  // if needs_timing()
  };
  struct Prompt {
    std::vector<int32_t> token_ids;
    bool scored = false;  // some of its log-probabilities have come
    Json logprobs;        // vLLM's prompt_logprobs, if the client asked for them
  };

  // ---- What differs between the endpoints. `index` is the choice's.
  // `status`, in which the fields of a chat have this endpoint's names.
  virtual absl::Status FromChatNames(const absl::Status& status) const { return status; }
  virtual const char* object_name() const = 0;
  virtual const char* chunk_name() const = 0;
  virtual void OnStarted(size_t index, std::string* events) = 0;
  virtual void OnPromptLogprobs(size_t index, const v1::PromptLogprobs& part, bool first_part) = 0;
  virtual void OnDelta(size_t index, absl::string_view text, const Tokens& tokens,
                       std::string* events) = 0;
  virtual void OnFinished(size_t index, std::string* events) = 0;
  // The choice's part of the whole object. Called once; takes what it can, so that nothing large is
  // there twice.
  virtual Json TakeChoice(size_t index) = 0;
  // Whether the end of each choice is kept with its times.
  virtual bool needs_timing() const { return api_.timing; }

  // Whether the prompt's log-probabilities are given with those of the answer.
  bool echoes_logprobs() const { return api_.echo && api_.logprobs.has_value(); }
  // Begins an event with one choice, whose members the caller appends as JSON text. REQUIRES:
  // cursor_ has counted it.
  void BeginEvent(std::string& events);
  void EndEvent(std::string& events) const;
  // "stop", "length", …
  static std::string FinishReasonText(v1::FinishReason reason);
  // ,"stop_reason":… of a finished choice.
  static Json StopReason(const Choice& choice);
  // The token ids of a delta, without the first `skipped`, where the client asked for them.
  static Json TokenIdsJson(const Tokens& tokens, size_t skipped);
  // Times and nodes, one element for each prompt.
  Json TimingJson() const;

  const ApiRequest api_;
  const AnswerHead head_;
  const model::Tokenizer& tokenizer_;
  // Bound: kPromptsMax (1,024), fixed at construction.
  std::vector<Prompt> prompts_;
  // Bound: n (128) for each prompt, fixed at construction.
  std::vector<Choice> choices_;  // n for each prompt
  std::string service_tier_;     // if the client wants to know; empty before the first part
  EventCursor cursor_;           // where the stream is; of the events that have an id

 private:
  // The index of the choice that a prompt's sequence is; nullopt if the client did not ask for it.
  std::optional<size_t> IndexOf(size_t prompt, int32_t sequence) const;
  Json UsageJson(const UsageTotals& usage) const;
  UsageTotals UsageSoFar() const;

  std::string event_begin_;  // every event's text up to its choice; made with the first event
  UsageTotals usage_;
  int64_t tokens_so_far_ = 0;  // of all choices
};

}  // namespace tandem::router
