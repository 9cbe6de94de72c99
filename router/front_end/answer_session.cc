#include "router/front_end/answer_session.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/rpc/convert.h"
#include "common/runtime/clock.h"
#include "router/front_end/bad_words.h"
#include "router/front_end/request_validation.h"

namespace tandem::router {
namespace {

class AnswerDetokenizer final : public Detokenizer {
 public:
  AnswerDetokenizer(const model::Tokenizer& tokenizer, model::StreamingDetokenizer::Options options)
      : detokenizer_(&tokenizer, options) {}
  std::string Append(TokenId token) override { return detokenizer_.Append(token); }
  std::string Flush() override { return detokenizer_.Flush(); }

 private:
  model::StreamingDetokenizer detokenizer_;
};

absl::Status CheckPromptBytes(const std::string& text, const ModelAssets& assets) {
  const auto bytes = static_cast<int64_t>(text.size());
  if (bytes <= assets.prompt_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "prompt: ", bytes, " bytes, expected at most ", assets.prompt_bytes_max, ": the context of ",
      assets.identity.served_name(), " holds ", assets.identity.context_tokens, " tokens"));
}

absl::StatusOr<std::vector<TokenId>> PromptTokens(const v1::GenerateRequest& request,
                                                  const ModelAssets& assets, absl::Time now) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      RETURN_IF_ERROR(CheckPromptBytes(request.text(), assets));
      return assets.tokenizer->Encode(request.text());
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(const std::string text, assets.RenderChat(request.chat(), now));
      RETURN_IF_ERROR(CheckPromptBytes(text, assets));
      // The template wrote the special tokens.
      return assets.tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = true});
    }
    case v1::GenerateRequest::kTokens:
      return std::vector<TokenId>(request.tokens().ids().data(),
                                  request.tokens().ids().data() + request.tokens().ids_size());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: expected one of text, chat and tokens, got none");
}

// Whether a request that is not taken on for this reason would be served at another time. What else
// there is, is wrong with the request itself.
bool IsRefusal(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

// How the answer's tokens become text. It goes on with the prompt's text, if there is any. A chat's
// answer is a text of its own; under a constraint its first space is kept even so, since it is the
// tokens' text that the constraint describes.
model::StreamingDetokenizer::Options AnswerTextOptions(const v1::GenerateRequest& request,
                                                       const Arrival& arrival,
                                                       const RequestInput& input,
                                                       const model::Tokenizer& tokenizer) {
  const bool skip = !request.keep_special_tokens();
  const auto has_text = [&](TokenId id) {
    return !(skip && tokenizer.IsSpecial(id)) && !tokenizer.TokenBytes(id).empty();
  };
  const bool begins = request.has_chat() || arrival.chat_turn ||
                      std::none_of(input.prompt->begin(), input.prompt->end(), has_text);
  return {.skip_special_tokens = skip, .continues_text = input.guided->any() || !begins};
}

}  // namespace

absl::StatusOr<std::shared_ptr<AnswerSession>> AnswerSession::Start(
    const v1::GenerateRequest& request, const Arrival& arrival, const Deps& deps,
    std::shared_ptr<AnswerSink> sink) {
  ASSIGN_OR_RETURN(std::shared_ptr<AnswerSession> session,
                   Make(request, arrival, deps, std::move(sink)));
  RETURN_IF_ERROR(session->Begin());
  return session;
}

absl::StatusOr<std::shared_ptr<AnswerSession>> AnswerSession::Make(
    const v1::GenerateRequest& request, const Arrival& arrival, const Deps& deps,
    std::shared_ptr<AnswerSink> sink) {
  auto session = std::make_shared<AnswerSession>(deps, std::move(sink));
  session->front_end_ = arrival.front_end;
  session->audit_ = arrival.audit;
  session->guard_ = arrival.guard;
  RETURN_IF_ERROR(session->Prepare(request, arrival, session->input_.emplace()));
  const request::GuidedParams& guided = *session->input_->guided;
  if (guided.any()) RETURN_IF_ERROR(session->ConstraintVerdict(guided).value_or(absl::OkStatus()));
  return session;
}

absl::Status AnswerSession::Begin() {
  RequestInput input = *std::exchange(input_, std::nullopt);
  const request::GuidedParams& guided = *input.guided;
  const bool known = !guided.any() || ConstraintVerdict(guided).has_value();
  absl::Status status =
      known ? Submit(std::move(input), front_end_) : SubmitLater(std::move(input), front_end_);
  if (status.ok()) return status;  // the strand has the session, and with it audit_
  over_ = true;                    // there is nothing to cancel
  CountFailure(status, /*is_shed=*/false);
  RecordEnd(status);
  return status;
}

std::optional<absl::Status> AnswerSession::ConstraintVerdict(
    const request::GuidedParams& params) const {
  std::optional<absl::Status> verdict = deps_.assets.constraints->Find(params);
  if (verdict.has_value() && !verdict->ok())
    *verdict = absl::Status(verdict->code(), absl::StrCat("guided: ", verdict->message()));
  return verdict;
}

absl::Status AnswerSession::SubmitLater(RequestInput input, LoadShedder::FrontEndKind front_end) {
  const SharedValue<request::GuidedParams> params = input.guided;
  guided::CompileQueue::Done done = [self = shared_from_this(), input = std::move(input),
                                     front_end]() mutable {
    // The verdict is missing only if newer ones displaced it at once. The nodes then check the
    // constraint.
    absl::Status status = self->ConstraintVerdict(*input.guided).value_or(absl::OkStatus());
    if (status.ok()) status = self->Submit(std::move(input), front_end);
    if (status.ok()) return;
    self->Fail(status);
    self->Flush(/*inline_ok=*/false);
  };
  if (deps_.constraints.Add(*params, done)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("guided: ", guided::CompileQueue::kConstraintsMax,
                   " other constraints wait to be compiled: try again"));
}

absl::Status AnswerSession::Submit(RequestInput input, LoadShedder::FrontEndKind front_end) {
  const LoadShedder::Position position = deps_.shedder.Enter(front_end, RealClock().Now());
  if (deps_.inbox.TryPushLow(SubmitRequest{std::move(input), shared_from_this(), position}))
    return absl::OkStatus();
  deps_.shedder.OnRejected();
  return InboxFull();
}

absl::Status AnswerSession::Prepare(const v1::GenerateRequest& request, const Arrival& arrival,
                                    RequestInput& input) {
  const ModelAssets& assets = deps_.assets;
  RETURN_IF_ERROR(ValidateEnvelope(request, assets.identity));
  ASSIGN_OR_RETURN(std::vector<TokenId> prompt, PromptTokens(request, assets, arrival.at));
  ASSIGN_OR_RETURN(input, ValidateRequest(request, std::move(prompt), assets.identity,
                                          assets.eos_token_ids, deps_.random));
  // The prompts of a batch come with equal constraints.
  if (input.guided->any()) input.guided = assets.constraints->Share(input.guided);
  started_.set_request_id(input.id.value());
  call_ = arrival.call;
  RETURN_IF_ERROR(Assign(input));
  RETURN_IF_ERROR(AssignTier(request.service_tier(), input));
  id_ = input.id;
  submitted_ = arrival.at;
  input.trace_id = arrival.trace_id;
  input.keeps_answers |= arrival.keeps_answers;
  input.front_end_bytes = arrival.front_end_bytes;
  resumes_ = arrival.resumes || Resumes(request);
  if (deps_.access_log) {
    const bool http = arrival.front_end == LoadShedder::FrontEndKind::kHttp;
    access_ = std::make_unique<AccessRecord>(started_.request_id(), arrival.trace_id,
                                             http ? "http" : "grpc", input.tier->name,
                                             static_cast<int64_t>(input.prompt->size()));
  }
  started_.set_model(assets.identity.served_name());
  started_.set_seed(input.sampling->seed);
  started_.set_prompt_tokens(static_cast<int32_t>(input.prompt->size()));
  if (request.return_prompt_token_ids()) {
    for (const TokenId token : *input.prompt) started_.add_prompt_token_ids(token);
  }
  return PrepareAnswers(request, arrival, input);
}

absl::Status AnswerSession::Assign(RequestInput& input) const {
  if (call_ == nullptr) return absl::OkStatus();
  const Tenant& tenant = call_->tenant();
  input.id = RequestId(tenant.ScopedId(input.id.value()));
  input.cache_salt = tenant.CacheSalt(input.cache_salt);
  const TenantLimits limits = tenant.limits();
  input.share = {tenant.name(), static_cast<double>(limits.weight), limits.kv_share};
  return tenant.CheckPriority(input.priority);
}

absl::Status AnswerSession::AssignTier(const std::string& asked, RequestInput& input) {
  std::vector<std::string> allowed;
  if (call_ != nullptr) allowed = call_->tenant().limits().service_tiers;
  ASSIGN_OR_RETURN(input.tier, deps_.tiers.Choose(asked, allowed));
  const int64_t priority = int64_t{input.priority} + input.tier->priority;
  input.priority = static_cast<int32_t>(std::clamp<int64_t>(
      priority, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()));
  started_.set_service_tier(input.tier->name);
  service_.emplace(input.tier, deps_.metrics.Of(*input.tier));
  return absl::OkStatus();
}

absl::Status AnswerSession::PrepareAnswers(const v1::GenerateRequest& request,
                                           const Arrival& arrival, RequestInput& input) {
  const model::Tokenizer& tokenizer = *deps_.assets.tokenizer;
  AnswerOptions options;
  options.sequences = input.sequences;
  options.n = request.has_n() ? request.n() : 1;
  options.return_logprobs = request.sampling().has_logprobs();
  options.return_tokens = request.return_token_ids() || options.return_logprobs;
  options.return_gaps = request.return_gaps();
  options.resume_from.assign(request.resume_from_tokens().begin(),
                             request.resume_from_tokens().end());
  if (request.resume_from_token() > 0) {
    options.resume_from.assign(static_cast<size_t>(input.sequences), request.resume_from_token());
  }
  options.prompt_only = IsPromptOnly(request);
  if (request.echo())
    options.echo = request.has_text()
                       ? request.text()
                       : tokenizer.Decode(*input.prompt, !request.keep_special_tokens());
  // The best answers are chosen by their log-probability.
  if (options.n < options.sequences && !options.return_logprobs) input.sampling.Edit().logprobs = 0;
  const model::StreamingDetokenizer::Options text_options =
      AnswerTextOptions(request, arrival, input, tokenizer);
  continues_text_ = text_options.continues_text;
  const SharedValue<StopRules> stop = StopRules(*input.stop, input.eos_token_ids);
  answers_ = std::make_unique<AnswerGroup>(std::move(options), [&] {
    return std::make_unique<AnswerAssembler>(
        std::make_unique<AnswerDetokenizer>(tokenizer, text_options), stop);
  });
  const auto encode = [&](absl::string_view text) {
    return tokenizer.Encode(text, {.add_special_tokens = false});
  };
  if (!request.bad_words().empty()) {
    RETURN_IF_ERROR(AddBadWords({request.bad_words().begin(), request.bad_words().end()}, encode,
                                input.sampling.Edit().bad_words));
  }
  return request::Validate(*input.sampling, deps_.assets.identity.vocab_size);
}

void AnswerSession::Cancel() {
  // A push into a closed inbox fails. The router is then shutting down and ends all requests
  // itself.
  if (!over_.exchange(true)) deps_.inbox.Push(SessionEnded{id_, shared_from_this()});
}

bool AnswerSession::EndIfCancelled() {
  if (!over_) return false;
  deps_.metrics.OnAborted();
  End(absl::CancelledError("the client cancelled the request"));
  return true;
}

void AnswerSession::Accepted() {
  accepted_ = true;
  ChargeUpTo(started_.prompt_tokens());
  v1::GenerateResponse part;
  *part.mutable_started() = started_;
  Send(part);
}

request::FinishReason AnswerSession::OnEvent(ClientEvent event) {
  if (const auto* failed = std::get_if<RequestFailed>(&event)) {
    EndCall(failed->computed_tokens);
    Fail(failed->status);
    return request::FinishReason::kNone;
  }
  if (auto* done = std::get_if<SequenceDone>(&event)) {
    const bool last = done->last;
    if (last) {
      over_ = true;
      EndCall(done->computed_tokens);
    }
    aborted_ |= done->reason == request::FinishReason::kAborted;
    deps_.traces.OnDone(id_.value(), submitted_, *done, service_->tier());
    CountSequence(*done);
    SendAll(answers_->OnDone(*std::move(done)), last);
    if (last && !overflowed_) Complete();
  } else if (auto* scored = std::get_if<PromptScored>(&event)) {
    SendAll(answers_->OnScores(std::move(*scored)), false);
  } else {
    const auto& tokens = std::get<TokensReady>(event);
    Measure(tokens);
    if (answers_->OnTokens(tokens, part_)) Send(part_);
    if (answers_->stopped(tokens.sequence_index)) return request::FinishReason::kStop;
  }
  if (!overflowed_ || sink_ == nullptr) return request::FinishReason::kNone;
  Fail(absl::ResourceExhaustedError(
      "the client reads too slowly: its unread parts exceeded the limit, so the request ended"));
  return request::FinishReason::kAborted;
}

void AnswerSession::Measure(const TokensReady& event) {
  if (event.tokens.empty()) return;
  const absl::Time now = RealClock().Now();
  if (last_tokens_.empty()) {
    deps_.metrics.OnFirstToken(now - submitted_);
    service_->OnFirstToken(now - submitted_);
  }
  const auto index = static_cast<size_t>(event.sequence_index);
  if (last_tokens_.size() <= index) last_tokens_.resize(index + 1, absl::InfinitePast());
  absl::Time& last = last_tokens_[index];
  const auto tokens = static_cast<int64_t>(event.tokens.size());
  output_tokens_ += tokens;
  const bool first = last == absl::InfinitePast();
  deps_.metrics.OnTokens(tokens, first ? absl::ZeroDuration() : now - last);
  if (!first) service_->OnTokens(tokens, now - last);
  last = now;
}

void AnswerSession::ChargeUpTo(int64_t computed_tokens) {
  if (call_ == nullptr) return;
  call_->tenant().Charge(computed_tokens - charged_, RealClock().Now());
  charged_ = computed_tokens;
}

void AnswerSession::EndCall(int64_t computed_tokens) {
  ChargeUpTo(computed_tokens);
  call_ = nullptr;
}

void AnswerSession::SendAll(AnswerGroup::Parts parts, bool last) {
  if (sink_ == nullptr) return;  // the client has its end
  for (size_t i = 0; i < parts.size() && !overflowed_; ++i) {
    if (parts[i].has_finished()) Count(parts[i].finished());
    Send(parts[i], last && i + 1 == parts.size());
  }
}

void AnswerSession::Count(const v1::Finished& finished) {
  deps_.metrics.OnFinished(finished);
  if (access_ != nullptr) access_->OnFinished(finished);
  if (audit_ != nullptr) audit_->OnFinished(finished);
  const v1::Usage& usage = finished.usage();
  finished_usage_.set_prompt_tokens(finished_usage_.prompt_tokens() + usage.prompt_tokens());
  finished_usage_.set_output_tokens(finished_usage_.output_tokens() + usage.output_tokens());
  reason_ = finished.reason();
}

void AnswerSession::CountSequence(const SequenceDone& done) {
  if (sink_ == nullptr) return;  // the client has its end
  deps_.metrics.OnSequence(done.route, done.timing);
  queued_ = std::min(queued_, absl::Milliseconds(done.timing.queue_ms()));
  if (access_ != nullptr) access_->OnSequence(done.sequence_index, done.route, done.timing);
}

void AnswerSession::CountUnfinished() {
  if (output_tokens_ <= finished_usage_.output_tokens()) return;
  v1::Usage rest;
  rest.set_prompt_tokens(started_.prompt_tokens() - finished_usage_.prompt_tokens());
  rest.set_output_tokens(static_cast<int32_t>(output_tokens_ - finished_usage_.output_tokens()));
  CountInLogs(rest);
}

void AnswerSession::CountInLogs(const v1::Usage& usage) {
  if (access_ != nullptr) access_->OnUnfinished(usage);
  if (audit_ != nullptr) audit_->OnUnfinished(usage);
}

void AnswerSession::Complete() {
  if (sink_ == nullptr) return;
  v1::Usage kept_back;
  kept_back.set_output_tokens(static_cast<int32_t>(answers_->output_tokens_kept_back()));
  if (kept_back.output_tokens() > 0) CountInLogs(kept_back);
  deps_.metrics.OnRequestFinished(reason_, queued_, RealClock().Now() - submitted_);
  End(absl::OkStatus());
}

void AnswerSession::Fail(const absl::Status& status, bool is_shed) {
  over_ = true;
  if (sink_ != nullptr) {
    CountFailure(status, is_shed);
    CountUnfinished();
  }
  End(status);
}

void AnswerSession::CountFailure(const absl::Status& status, bool is_shed) {
  if (accepted_) {
    deps_.metrics.OnFailed();
  } else if (IsRefusal(status) && !is_shed) {
    deps_.metrics.OnRefused(absl::IsUnavailable(status) ? RefusalReason::kUnavailable
                                                        : RefusalReason::kExhausted);
  }
  deps_.traces.OnFailed(id_.value(), submitted_, status, service_->tier());
}

void AnswerSession::Send(v1::GenerateResponse& part, bool last) {
  if (sink_ != nullptr && !sink_->OnPart(part, last)) overflowed_ = true;
}

void AnswerSession::Flush(bool inline_ok) {
  if (sink_ != nullptr) return sink_->Flush(inline_ok);
  if (const auto ended = std::exchange(ended_, nullptr)) ended->Flush(inline_ok);
}

void AnswerSession::End(const absl::Status& status) {
  if (sink_ == nullptr) return;
  sink_->OnEnd(status);
  RecordEnd(status);
  ended_ = std::move(sink_);
  if (!accepted_) call_ = nullptr;  // else once the core has ended the request
  part_ = v1::GenerateResponse();   // here, not on the thread that lets go of the session
}

void AnswerSession::RecordEnd(const absl::Status& status) {
  if (accepted_ || absl::IsCancelled(status)) {
    service_->OnEnd(status, aborted_);
  } else if (IsRefusal(status)) {
    service_->OnRefused();
  }
  if (access_ != nullptr) access_->Write(status, RealClock().Now() - submitted_);
  if (audit_ != nullptr) audit_->SetResult(status);
  audit_ = nullptr;
}

}  // namespace tandem::router
