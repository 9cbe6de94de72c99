#include "router/server/generate_session.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/rpc/convert.h"
#include "common/rpc/status.h"
#include "router/pipeline/validate.h"
#include "router/server/parse_request.h"

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

std::shared_ptr<GenerateSession> GenerateSession::Start(const v1::GenerateRequest& request,
                                                        absl::Time now, const ModelAssets& assets,
                                                        Inbox& inbox, Random& random) {
  auto session = std::make_shared<GenerateSession>(assets, inbox);
  RequestInput input;
  absl::Status status = session->Prepare(request, now, random, input);
  if (status.ok() && !inbox.TryPush(SubmitRequest{std::move(input), session})) {
    status = absl::ResourceExhaustedError("the router's inbox is full: try again");
  }
  if (!status.ok()) session->Fail(status);
  return session;
}

absl::Status GenerateSession::Prepare(const v1::GenerateRequest& request, absl::Time now,
                                      Random& random, RequestInput& input) {
  RETURN_IF_ERROR(ValidateEnvelope(request, assets_.identity));
  ASSIGN_OR_RETURN(std::vector<TokenId> prompt, PromptTokens(request, assets_, now));
  ASSIGN_OR_RETURN(input, ValidateRequest(request, std::move(prompt), assets_.identity,
                                          assets_.eos_token_ids, random));
  id_ = input.id;
  return_tokens_ = request.return_token_ids() || input.sampling.logprobs.has_value();
  started_.set_request_id(id_.value());
  started_.set_model(assets_.identity.name);
  started_.set_seed(input.sampling.seed);
  started_.set_prompt_tokens(static_cast<int32_t>(input.prompt.size()));
  if (request.return_prompt_token_ids()) {
    for (const TokenId token : input.prompt) started_.add_prompt_token_ids(token);
  }
  assembler_ = std::make_unique<AnswerAssembler>(
      std::make_unique<AnswerDetokenizer>(*assets_.tokenizer), input.stop, input.eos_token_ids);
  return absl::OkStatus();
}

GenerateSession* GenerateSession::Keep() {
  self_ = shared_from_this();
  return this;
}

void GenerateSession::Accepted() {
  v1::GenerateResponse response;
  *response.mutable_started() = started_;
  Write(std::move(response));
}

request::FinishReason GenerateSession::OnEvent(const ClientEvent& event) {
  if (const auto* failed = std::get_if<RequestFailed>(&event)) {
    Fail(failed->status);
  } else if (const auto* done = std::get_if<RequestDone>(&event)) {
    SendFinished(*done);
  } else {
    SendTokens(std::get<TokensReady>(event));
    if (assembler_->stopped()) return request::FinishReason::kStop;
    if (outbox_.overflowed()) {
      Fail(absl::ResourceExhaustedError(
          absl::StrCat("the client left ", kOutboxMax, " messages unread: request ended")));
      return request::FinishReason::kAborted;
    }
  }
  return request::FinishReason::kNone;
}

void GenerateSession::SendTokens(const TokensReady& event) {
  v1::GenerateResponse response;
  v1::Delta& delta = *response.mutable_delta();
  for (const v1::GeneratedToken& token : event.tokens) {
    if (assembler_->stopped())
      break;  // computed before the stop string was seen: not part of the answer
    ++output_tokens_;
    delta.mutable_text()->append(assembler_->Append(token.token_id()));
    if (return_tokens_) *delta.add_tokens() = token;
  }
  if (!delta.text().empty() || delta.tokens_size() > 0) Write(std::move(response));
}

void GenerateSession::SendFinished(const RequestDone& event) {
  if (std::string rest = assembler_->Flush(); !rest.empty()) {
    v1::GenerateResponse response;
    response.mutable_delta()->set_text(std::move(rest));
    Write(std::move(response));
  }
  v1::GenerateResponse response;
  v1::Finished& finished = *response.mutable_finished();
  finished.set_reason(rpc::ToWire(event.reason));
  finished.set_stop_string(std::string(assembler_->stop_string()));
  *finished.mutable_usage() = event.usage;
  finished.mutable_usage()->set_output_tokens(output_tokens_);
  *finished.mutable_route() = event.route;
  *finished.mutable_timing() = event.timing;
  over_ = true;
  if (outbox_.AddLast(std::move(response))) WriteCurrent();
}

void GenerateSession::Fail(const absl::Status& status) {
  over_ = true;
  End(status);
}

void GenerateSession::Write(v1::GenerateResponse response) {
  if (outbox_.Add(std::move(response))) WriteCurrent();
}

void GenerateSession::WriteCurrent() {
  writing_ = SerializeResponse(*outbox_.current());
  StartWrite(&writing_);
}

void GenerateSession::End(const absl::Status& status) {
  if (ending_.exchange(true)) return;
  end_status_ = status;
  if (outbox_.Close()) FinishOnce();
}

void GenerateSession::FinishOnce() {
  if (!finished_.exchange(true)) Finish(rpc::ToGrpc(end_status_));
}

void GenerateSession::OnWriteDone(bool ok) {
  if (!ok) {
    OnCancel();
    End(absl::CancelledError("the client is gone"));
  }
  if (outbox_.Written()) {
    WriteCurrent();
  } else if (outbox_.closed()) {
    // First: a client that goes while its last message is written has ended the call already.
    FinishOnce();
  } else if (outbox_.drained()) {
    End(absl::OkStatus());
  }
}

void GenerateSession::OnCancel() {
  // A push onto a closed inbox fails: the router is going down and ends all requests itself.
  if (!over_.exchange(true)) inbox_.Push(SessionEnded{id_, shared_from_this()});
  End(absl::CancelledError("the client cancelled"));
}

void GenerateSession::OnDone() { self_.reset(); }

}  // namespace tandem::router
