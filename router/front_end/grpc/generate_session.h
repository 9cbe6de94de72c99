// One Generate call over gRPC. It reads the request, writes the parts of an AnswerSession to the
// client, buffers what a slow client has not read up to a bound, and cancels the session when the
// client is gone. As for a UnaryCall, the service has looked at the call's metadata before the
// message is read.
// Thread safety: AnswerSink's methods run on the core's strand, gRPC's reactions on its threads;
// the outbox and a mutex synchronize them.
// Owner: shared by gRPC (until OnDone) and the session (until its end).
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/outbox.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/grpc/unary_call.h"

namespace tandem::router {

class GenerateSession final : public ClientReactor,
                              public AnswerSink,
                              public std::enable_shared_from_this<GenerateSession> {
 public:
  // Starts the answer to the message that has come, for the given sink. An error ends the call.
  using Starter = std::function<absl::StatusOr<std::shared_ptr<AnswerSession>>(
      const grpc::ByteBuffer&, std::shared_ptr<AnswerSink>)>;

  // Reads the message, then runs `start`: on a gRPC thread for a message of at most
  // `short_bytes_max`, otherwise on a thread of `long_work`, which outlives the call. `audit`: null
  // without an audit log. gRPC keeps the reactor until OnDone.
  static GenerateSession* Start(std::shared_ptr<AuditCall> audit, Starter start,
                                LongWork& long_work, size_t short_bytes_max);
  // The reactor of a call that is refused.
  static GenerateSession* Refuse(const absl::Status& status, std::shared_ptr<AuditCall> audit);

  GenerateSession() : outbox_(kOutboxMax) {}

  // ---- AnswerSink
  bool OnPart(v1::GenerateResponse& part, bool last) override;
  void OnEnd(const absl::Status& status) override;
  void Flush(bool) override {}  // gRPC writes each part at once

  // ---- gRPC
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Messages that a client may leave unread. Beyond it the session ends this request.
  static constexpr size_t kOutboxMax = 16384;

  // Starts the answer to the message that has come.
  void Answer();
  // Serializes and writes the outbox's current message.
  void WriteCurrent();
  // The first caller decides the call's status.
  void End(const absl::Status& status);
  void FinishOnce();
  // The call ends before there is an answer, with `status`.
  void Fail(const absl::Status& status);

  std::shared_ptr<GenerateSession> self_;  // held until OnDone
  std::shared_ptr<AuditCall> audit_;       // until the answer has it
  Starter start_;
  LongWork* long_work_ = nullptr;  // null for a call that is refused
  size_t short_bytes_max_ = 0;
  grpc::ByteBuffer request_;
  absl::Mutex mutex_;
  std::shared_ptr<AnswerSession> answer_ ABSL_GUARDED_BY(mutex_);  // null until it is started
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;                 // the client is gone
  bool done_ ABSL_GUARDED_BY(mutex_) = false;                      // OnDone has come
  rpc::Outbox<v1::GenerateResponse> outbox_;
  grpc::ByteBuffer writing_;  // the current message's bytes; owned like it
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  absl::Status end_status_;  // written once, before the outbox closes
};

}  // namespace tandem::router
