#include "router/front_end/grpc/generate_session.h"

#include <utility>

#include "common/rpc/error_details.h"
#include "router/front_end/grpc/parse_request.h"

namespace tandem::router {

GenerateSession* GenerateSession::Start(std::shared_ptr<AuditCall> audit, Starter start,
                                        LongWork& long_work, size_t short_bytes_max) {
  auto session = std::make_shared<GenerateSession>();
  session->self_ = session;
  session->audit_ = std::move(audit);
  session->start_ = std::move(start);
  session->long_work_ = &long_work;
  session->short_bytes_max_ = short_bytes_max;
  session->StartRead(&session->request_);
  return session.get();
}

GenerateSession* GenerateSession::Refuse(const absl::Status& status,
                                         std::shared_ptr<AuditCall> audit) {
  auto session = std::make_shared<GenerateSession>();
  session->self_ = session;
  session->audit_ = std::move(audit);
  session->Fail(status);
  return session.get();
}

void GenerateSession::Fail(const absl::Status& status) {
  if (audit_ != nullptr) audit_->SetResult(status);
  audit_ = nullptr;
  End(status);
}

void GenerateSession::OnReadDone(bool ok) {
  if (!ok) return Fail(absl::InvalidArgumentError("the call ended without a message"));
  const size_t bytes = request_.Length();
  if (bytes <= short_bytes_max_) return Answer();
  const absl::Status added =
      long_work_->Add(bytes, [session = shared_from_this()] { session->Answer(); });
  if (!added.ok()) Fail(added);
}

void GenerateSession::Answer() {
  absl::StatusOr<std::shared_ptr<AnswerSession>> answer = start_(request_, shared_from_this());
  start_ = nullptr;
  request_.Clear();
  if (!answer.ok()) return Fail(answer.status());
  audit_ = nullptr;
  bool cancelled = false;
  {
    absl::MutexLock lock(&mutex_);
    // The core may have ended the call by now. The two would hold each other.
    if (!done_) answer_ = *answer;
    cancelled = cancelled_;
  }
  if (cancelled) (*answer)->Cancel();
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
  std::shared_ptr<AnswerSession> answer;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    answer = answer_;
  }
  if (answer != nullptr) answer->Cancel();
  End(absl::CancelledError("the client cancelled the request"));
}

void GenerateSession::OnDone() {
  std::shared_ptr<AnswerSession> answer;
  {
    absl::MutexLock lock(&mutex_);
    done_ = true;
    answer = std::move(answer_);
  }
  self_ = nullptr;
}

}  // namespace tandem::router
