#include "router/server/answer_session.h"

#include <utility>
#include <variant>

#include "common/base/status_macros.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/rpc/convert.h"
#include "common/runtime/clock.h"
#include "router/pipeline/validate.h"

namespace tandem::router {
namespace {

class AnswerDetokenizer final : public Detokenizer {
 public:
  explicit AnswerDetokenizer(const model::Tokenizer& tokenizer) : detokenizer_(&tokenizer) {}
  std::string Append(TokenId token) override { return detokenizer_.Append(token); }
  std::string Flush() override { return detokenizer_.Flush(); }

 private:
  model::StreamingDetokenizer detokenizer_;
};

absl::StatusOr<std::vector<TokenId>> PromptTokens(const v1::GenerateRequest& request,
                                                  const ModelAssets& assets, absl::Time now) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      return assets.tokenizer->Encode(request.text());
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(const std::string text, assets.RenderChat(request.chat(), now));
      // The template wrote the special tokens.
      return assets.tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = true});
    }
    case v1::GenerateRequest::kTokens:
      return std::vector<TokenId>(request.tokens().ids().begin(), request.tokens().ids().end());
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: expected one of text, chat and tokens, got none");
}

}  // namespace

absl::StatusOr<std::shared_ptr<AnswerSession>> AnswerSession::Start(
    const v1::GenerateRequest& request, absl::Time now, const Deps& deps,
    std::shared_ptr<AnswerSink> sink) {
  auto session = std::make_shared<AnswerSession>(deps, std::move(sink));
  RequestInput input;
  RETURN_IF_ERROR(session->Prepare(request, now, input));
  if (!deps.inbox.TryPush(SubmitRequest{std::move(input), session})) {
    return absl::ResourceExhaustedError("the router's inbox is full: try again");
  }
  return session;
}

absl::Status AnswerSession::Prepare(const v1::GenerateRequest& request, absl::Time now,
                                    RequestInput& input) {
  const ModelAssets& assets = deps_.assets;
  RETURN_IF_ERROR(ValidateEnvelope(request, assets.identity));
  ASSIGN_OR_RETURN(std::vector<TokenId> prompt, PromptTokens(request, assets, now));
  ASSIGN_OR_RETURN(input, ValidateRequest(request, std::move(prompt), assets.identity,
                                          assets.eos_token_ids, deps_.random));
  id_ = input.id;
  submitted_ = now;
  return_tokens_ = request.return_token_ids() || input.sampling.logprobs.has_value();
  started_.set_request_id(id_.value());
  started_.set_model(assets.identity.name);
  started_.set_seed(input.sampling.seed);
  started_.set_prompt_tokens(static_cast<int32_t>(input.prompt.size()));
  if (request.return_prompt_token_ids()) {
    for (const TokenId token : input.prompt) started_.add_prompt_token_ids(token);
  }
  answers_.emplace_back().assembler = std::make_unique<AnswerAssembler>(
      std::make_unique<AnswerDetokenizer>(*assets.tokenizer), input.stop, input.eos_token_ids);
  return absl::OkStatus();
}

void AnswerSession::Cancel() {
  // A push onto a closed inbox fails: the router is going down and ends all requests itself.
  if (!over_.exchange(true)) deps_.inbox.Push(SessionEnded{id_, shared_from_this()});
}

void AnswerSession::Accepted() {
  v1::GenerateResponse part;
  *part.mutable_started() = started_;
  Send(std::move(part));
}

request::FinishReason AnswerSession::OnEvent(const ClientEvent& event) {
  Answer& answer = answers_[0];
  if (const auto* failed = std::get_if<RequestFailed>(&event)) {
    Fail(failed->status);
  } else if (const auto* done = std::get_if<RequestDone>(&event)) {
    SendFinished(answer, *done);
  } else {
    SendTokens(answer, std::get<TokensReady>(event));
    if (answer.assembler->stopped()) return request::FinishReason::kStop;
    if (overflowed_) {
      Fail(absl::ResourceExhaustedError(
          "the client left more unread than is kept for it: request ended"));
      return request::FinishReason::kAborted;
    }
  }
  return request::FinishReason::kNone;
}

void AnswerSession::Measure(int64_t tokens) {
  const absl::Time now = RealClock().Now();
  const bool first = last_tokens_ == absl::InfinitePast();
  if (first) deps_.metrics.OnFirstToken(now - submitted_);
  deps_.metrics.OnTokens(tokens, first ? absl::ZeroDuration() : now - last_tokens_);
  last_tokens_ = now;
}

void AnswerSession::SendTokens(Answer& answer, const TokensReady& event) {
  if (!event.tokens.empty()) Measure(static_cast<int64_t>(event.tokens.size()));
  v1::GenerateResponse part;
  v1::Delta& delta = *part.mutable_delta();
  for (const v1::GeneratedToken& token : event.tokens) {
    if (answer.assembler->stopped())
      break;  // computed before the stop string was seen: not part of the answer
    ++answer.output_tokens;
    delta.mutable_text()->append(answer.assembler->Append(token.token_id()));
    if (return_tokens_) *delta.add_tokens() = token;
  }
  if (!delta.text().empty() || delta.tokens_size() > 0) Send(std::move(part));
}

void AnswerSession::SendFinished(Answer& answer, const RequestDone& event) {
  if (std::string rest = answer.assembler->Flush(); !rest.empty()) {
    v1::GenerateResponse part;
    part.mutable_delta()->set_text(std::move(rest));
    Send(std::move(part));
  }
  v1::GenerateResponse part;
  v1::Finished& finished = *part.mutable_finished();
  finished.set_reason(rpc::ToWire(event.reason));
  finished.set_stop_string(std::string(answer.assembler->stop_string()));
  *finished.mutable_usage() = event.usage;
  finished.mutable_usage()->set_output_tokens(answer.output_tokens);
  *finished.mutable_route() = event.route;
  *finished.mutable_timing() = event.timing;
  over_ = true;
  deps_.metrics.OnFinished(finished, RealClock().Now() - submitted_);
  Send(std::move(part), true);
  End(absl::OkStatus());
}

void AnswerSession::Fail(const absl::Status& status) {
  over_ = true;
  if (sink_ != nullptr) deps_.metrics.OnFailed();
  End(status);
}

void AnswerSession::Send(v1::GenerateResponse part, bool last) {
  if (sink_ != nullptr && !sink_->OnPart(std::move(part), last)) overflowed_ = true;
}

void AnswerSession::End(const absl::Status& status) {
  if (sink_ == nullptr) return;
  sink_->OnEnd(status);
  sink_ = nullptr;
}

}  // namespace tandem::router
