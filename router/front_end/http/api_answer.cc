#include "router/front_end/http/api_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "router/front_end/http/anthropic_format.h"
#include "router/front_end/http/chat_format.h"
#include "router/front_end/http/completion_format.h"
#include "router/front_end/http/ollama_format.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/response_format.h"
#include "router/front_end/http/response_request.h"

namespace tandem::router {
namespace {

// One session's way into the answer it is a part of.
class PromptSink final : public AnswerSink {
 public:
  PromptSink(std::shared_ptr<ApiAnswer> answer, size_t prompt)
      : answer_(std::move(answer)), prompt_(prompt) {}
  bool OnPart(v1::GenerateResponse& part, bool) override { return answer_->Offer(prompt_, part); }
  void OnEnd(const absl::Status& status) override { answer_->Ended(status); }
  void Flush(bool inline_ok) override { answer_->Flush(inline_ok); }

 private:
  const std::shared_ptr<ApiAnswer> answer_;  // until the session lets go of its sink
  const size_t prompt_;
};

// Room for events, which are copied to their connection at once: a thread's own, so that it is not
// allocated for each. An answer may be written from within another's writing (a request sent ahead
// is begun there): it has room of its own then.
class EventRoom {
 public:
  EventRoom() { text.swap(Kept()); }
  ~EventRoom() {
    text.clear();
    if (text.capacity() <= kKeptMax) text.swap(Kept());
  }
  EventRoom(const EventRoom&) = delete;
  EventRoom& operator=(const EventRoom&) = delete;

  std::string text;

 private:
  static constexpr size_t kKeptMax = size_t{64} << 10;
  static std::string& Kept() {
    thread_local std::string kept;
    return kept;
  }
};

// About how many bytes of text without log-probabilities take as long to format as `part`.
int64_t CostOf(const v1::GenerateResponse& part) {
  constexpr int64_t kPart = 50;
  constexpr int64_t kLogprob = 200;  // one, with its token's text: a dozen allocations
  constexpr int64_t kNumber = 8;
  const auto of_tokens = [](const auto& tokens) {
    int64_t cost = 0;
    for (const v1::GeneratedToken& token : tokens)
      cost += kLogprob * (1 + token.top_logprobs_size());
    return cost;
  };
  switch (part.part_case()) {
    case v1::GenerateResponse::kStarted:
      return kPart + kNumber * part.started().prompt_token_ids_size();
    case v1::GenerateResponse::kPromptLogprobs:
      return kPart + of_tokens(part.prompt_logprobs().tokens());
    case v1::GenerateResponse::kDelta:
      return kPart + static_cast<int64_t>(part.delta().text().size()) +
             of_tokens(part.delta().tokens());
    case v1::GenerateResponse::kFinished:
      return kPart + kNumber * part.finished().timing().gap_ms_size();
    case v1::GenerateResponse::PART_NOT_SET:
      break;
  }
  return 0;
}

std::unique_ptr<AnswerFormat> NewFormat(ApiRequest api, const AnswerHead& head,
                                        const model::Tokenizer& tokenizer) {
  switch (api.kind) {
    case ApiKind::kCompletion:
      return NewCompletionFormat(std::move(api), head, tokenizer);
    case ApiKind::kChat:
      return NewChatFormat(std::move(api), head, tokenizer);
    case ApiKind::kOllamaChat:
    case ApiKind::kOllamaGenerate:
      return NewOllamaFormat(std::move(api), head, tokenizer);
    case ApiKind::kMessage:
      return NewAnthropicFormat(std::move(api), head, tokenizer);
    case ApiKind::kResponse:
      break;
  }
  return NewResponseFormat(std::move(api), head, tokenizer);
}

}  // namespace

void ApiAnswer::Start(ApiRequest api, std::shared_ptr<HttpExchange> exchange,
                      const AnswerSession::Deps& deps, Options options, const Arrival& arrival,
                      bool on_long_work) {
  const model::Tokenizer& tokenizer = *deps.assets.tokenizer;
  // The prompts are not kept while they are answered.
  std::vector<v1::GenerateRequest> requests = std::move(api.requests);
  api.requests.clear();
  api.prompts = requests.size();
  const bool stream = api.stream;
  const bool writes_start =
      api.kind == ApiKind::kChat || api.kind == ApiKind::kResponse || api.kind == ApiKind::kMessage;
  const bool repeats_all = !stream || api.kind == ApiKind::kResponse;
  // A call ends the message before it, whose text is then told as a whole.
  const bool repeats_early = api.kind == ApiKind::kResponse && api.tool_mode != ToolMode::kNone;
  const int64_t repeated = api.response == nullptr ? 0 : api.response->held_bytes();
  auto format = NewFormat(std::move(api), options.head, tokenizer);
  auto answer =
      std::make_shared<ApiAnswer>(exchange, stream, std::move(options), std::move(format));
  answer->repeats_all_ = repeats_all;
  answer->repeats_early_ = repeats_early;
  {
    absl::MutexLock lock(&answer->mutex_);
    answer->cost_ = answer->repeated_cost_ = repeated;
    answer->writes_ = !stream || !writes_start;
  }
  // A server that stops drops what was posted. Sessions and answer hold each other until they end.
  const std::shared_ptr<void> unless_started(nullptr, [answer](void*) {
    if (!answer->started_) answer->sessions_.clear();
  });
  const absl::Status made = answer->MakeSessions(requests, deps, arrival);
  if (!made.ok() && arrival.audit != nullptr) arrival.audit->SetResult(made);
  auto begin = [answer, unless_started, made] {
    answer->exchange_->Wait(answer);
    answer->Begin(made);
  };
  on_long_work ? exchange->Post(std::move(begin)) : begin();
}

absl::Status ApiAnswer::MakeSessions(const std::vector<v1::GenerateRequest>& requests,
                                     const AnswerSession::Deps& deps, const Arrival& arrival) {
  for (size_t i = 0; i < requests.size(); ++i) {
    auto session = AnswerSession::Make(requests[i], arrival, deps,
                                       std::make_shared<PromptSink>(shared_from_this(), i));
    if (!session.ok()) {
      sessions_.clear();  // they hold the sinks, which hold this
      if (requests.size() == 1) return session.status();
      // Which of the prompts it was.
      return absl::Status(session.status().code(),
                          absl::StrCat(session.status().message(), " (prompt ", i, ")"));
    }
    sessions_.push_back(*std::move(session));
    format_->SetContinuesText(i, sessions_.back()->continues_text());
    if (requests.size() == 1) break;  // the core alone bounds it
    absl::Status room = share_.Add(sessions_.back()->held_bytes_max(), i + 1, requests.size());
    if (room.ok()) continue;
    sessions_.clear();
    return room;
  }
  absl::MutexLock lock(&mutex_);
  ahead_.resize(sessions_.size());
  return absl::OkStatus();
}

void ApiAnswer::Begin(const absl::Status& made) {
  started_ = true;
  std::string none;
  if (done_) return;  // the client is gone
  const absl::Status begun = made.ok() ? BeginSessions() : made;
  if (!begun.ok()) Fail(begun, none);
}

absl::Status ApiAnswer::BeginSessions() {
  while (!done_ && begun_ < sessions_.size()) {
    const int32_t sequences = sessions_[begun_]->sequences_at_once();
    {
      absl::MutexLock lock(&mutex_);
      if (sequences_ahead_ > 0 && sequences_ahead_ + sequences > kSequencesAhead) break;
      ahead_[begun_] = sequences;
      sequences_ahead_ += sequences;
    }
    ++running_;
    RETURN_IF_ERROR(sessions_[begun_++]->Begin());
  }
  return absl::OkStatus();
}

void ApiAnswer::Flush(bool inline_ok) {
  {
    absl::MutexLock lock(&mutex_);
    if (!due_ || awake_ || gone_) return;
    due_ = false;
    awake_ = true;
    inline_ok = inline_ok && IsQuick();
  }
  auto drain = [self = shared_from_this()] { self->Drain(/*woken=*/true); };
  inline_ok ? exchange_->RunOrPost(std::move(drain)) : exchange_->Post(std::move(drain));
}

bool ApiAnswer::IsQuick() const {
  const bool repeats = repeats_early_ || (repeats_all_ && !ends_.empty());
  return (repeats ? repeated_cost_ : cost_) <= kInlineCostMax;
}

bool ApiAnswer::Offer(size_t prompt, v1::GenerateResponse& part) {
  const bool urgent = stream_ && !part.has_started();
  absl::MutexLock lock(&mutex_);
  // The core has taken the session's sequences: there is room for others of this answer.
  sequences_ahead_ -= std::exchange(ahead_[prompt], 0);
  if (part.has_started() && sequences_ahead_ <= kSequencesAhead / 2) due_ = true;
  if (gone_) return true;
  if (parts_.size() >= kPartsMax) return false;
  const int64_t cost = CostOf(part);
  cost_ += cost;
  repeated_cost_ += cost;
  writes_ = writes_ || part.has_delta() || part.has_finished();
  parts_.Add(prompt, part);
  if (urgent || parts_.size() % kGatheredParts == 0) due_ = true;
  return true;
}

void ApiAnswer::Ended(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  ends_.push_back(status);
  due_ = true;
}

void ApiAnswer::Drain(bool woken) {
  std::vector<absl::Status> ends;
  {
    absl::MutexLock lock(&mutex_);
    if (woken) awake_ = false;
    // Later, when what was written is out.
    if (done_ || exchange_->writing()) return;
    if (writes_) {
      taken_.Clear();
      std::swap(taken_, parts_);
      cost_ = 0;
    }
    ends.swap(ends_);
    due_ = false;
  }
  EventRoom room;
  std::string& events = room.text;
  Format(events);
  for (const absl::Status& end : ends) {
    --running_;
    if (!end.ok()) return Fail(end, events);
  }
  if (const absl::Status status = BeginSessions(); !status.ok()) return Fail(status, events);
  if (running_ == 0) return Complete(events);
  if (events.empty()) return;
  if (streaming_) return exchange_->WriteStream(events);
  BeginStream(events);
}

void ApiAnswer::Format(std::string& events) {
  std::string* const to = stream_ ? &events : nullptr;
  for (const PartBuffer::Item& item : taken_.items()) {
    if (item.is_text) {
      format_->AddText(item.prompt, item.sequence_index, taken_.TextOf(item), to);
    } else {
      format_->Add(item.prompt, item.part, to);
    }
  }
}

// The head waits for the first event: a request that fails before it gets a status of its own.
void ApiAnswer::BeginStream(absl::string_view events) {
  streaming_ = true;
  exchange_->BeginStream(NewReply(format_->stream_type(), std::string(events)));
}

void ApiAnswer::Complete(std::string& events) {
  done_ = true;
  if (!stream_) {
    exchange_->Reply(NewReply("application/json", format_->ToJson()));
    return Release();
  }
  format_->EndEvents(events);
  if (!streaming_) {
    BeginStream(events);
    events.clear();
  }
  exchange_->EndStream(true, events);
  Release();
}

void ApiAnswer::Fail(const absl::Status& status, std::string& events) {
  done_ = true;
  CancelSessions();
  if (!streaming_ && !events.empty()) {
    BeginStream(events);
    events.clear();
  }
  if (!streaming_) {
    HttpReply reply = ErrorReply(format_->TranslateFieldNames(status));
    options_.error_form.Apply(reply);
    reply.headers.insert(reply.headers.end(), options_.headers.begin(), options_.headers.end());
    exchange_->Reply(std::move(reply));
    return Release();
  }
  format_->FailEvents(format_->TranslateFieldNames(status), events);
  exchange_->EndStream(true, events);
  Release();
}

HttpReply ApiAnswer::NewReply(std::string content_type, std::string body) const {
  return {200, std::move(content_type), std::move(body), options_.headers};
}

void ApiAnswer::OnGone() {
  done_ = true;
  CancelSessions();
  Release();
}

void ApiAnswer::Release() {
  format_ = nullptr;
  taken_ = PartBuffer();
}

void ApiAnswer::CancelSessions() {
  PartBuffer dropped;  // destroyed without the lock, for which the core may wait
  {
    absl::MutexLock lock(&mutex_);
    gone_ = true;
    std::swap(dropped, parts_);
  }
  for (const auto& session : sessions_) session->Cancel();
  sessions_.clear();
}

}  // namespace tandem::router
