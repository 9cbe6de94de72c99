#include "router/front_end/grpc/generate_session.h"

#include <utility>

#include "common/rpc/error_details.h"
#include "router/front_end/grpc/parse_request.h"

namespace tandem::router {

GenerateSession* GenerateSession::Start(const v1::GenerateRequest& request, const Arrival& arrival,
                                        const AnswerSession::Deps& deps) {
  auto session = std::make_shared<GenerateSession>();
  session->self_ = session;
  absl::StatusOr<std::shared_ptr<AnswerSession>> answer =
      AnswerSession::Start(request, arrival, deps, session);
  // gRPC calls a reactor only after the method that made it has returned.
  if (answer.ok()) {
    session->answer_ = *std::move(answer);
  } else {
    session->End(answer.status());
  }
  return session.get();
}

GenerateSession* GenerateSession::Refuse(const absl::Status& status) {
  auto session = std::make_shared<GenerateSession>();
  session->self_ = session;
  session->End(status);
  return session.get();
}

bool GenerateSession::OnPart(v1::GenerateResponse& part, bool last) {
  if (last ? outbox_.AddLast(std::move(part)) : outbox_.Add(std::move(part))) WriteCurrent();
  return !outbox_.overflowed();
}

void GenerateSession::OnEnd(const absl::Status& status) {
  // A complete answer ends the call when its last message is written.
  if (!status.ok()) End(status);
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
  if (!finished_.exchange(true)) Finish(rpc::ToGrpcWithDetails(end_status_));
}

void GenerateSession::OnWriteDone(bool ok) {
  if (!ok) OnCancel();
  if (outbox_.Written()) {
    WriteCurrent();
  } else if (outbox_.closed()) {
    // Checked first: a client that leaves during the last write has ended the call already.
    FinishOnce();
  } else if (outbox_.drained()) {
    End(absl::OkStatus());
  }
}

void GenerateSession::OnCancel() {
  if (answer_ != nullptr) answer_->Cancel();
  End(absl::CancelledError("the client cancelled the request"));
}

void GenerateSession::OnDone() {
  answer_ = nullptr;
  self_ = nullptr;
}

}  // namespace tandem::router
