// One Generate call over gRPC. It writes the parts of an AnswerSession to the client, buffers what
// a slow client has not read up to a bound, and cancels the session when the client is gone. Thread
// safety: AnswerSink's methods run on the core's strand, gRPC's reactions on its threads; the
// outbox synchronizes them.
// Owner: shared by gRPC (until OnDone) and the session (until its end).
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "common/rpc/outbox.h"
#include "router/front_end/answer_session.h"

namespace tandem::router {

class GenerateSession final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public AnswerSink,
                              public std::enable_shared_from_this<GenerateSession> {
 public:
  // The reactor of a call with `request`. gRPC keeps the reactor until OnDone. An error ends the
  // call with its status.
  static GenerateSession* Start(const v1::GenerateRequest& request, const Arrival& arrival,
                                const AnswerSession::Deps& deps);
  // The reactor of a call that is refused.
  static GenerateSession* Refuse(const absl::Status& status);

  GenerateSession() : outbox_(kOutboxMax) {}

  // ---- AnswerSink
  bool OnPart(v1::GenerateResponse& part, bool last) override;
  void OnEnd(const absl::Status& status) override;
  void Flush(bool) override {}  // gRPC writes each part at once

  // ---- gRPC
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Messages that a client may leave unread. Beyond it the session ends this request.
  static constexpr size_t kOutboxMax = 16384;

  // Serializes and writes the outbox's current message.
  void WriteCurrent();
  // The first caller decides the call's status.
  void End(const absl::Status& status);
  void FinishOnce();

  std::shared_ptr<GenerateSession> self_;  // held until OnDone
  std::shared_ptr<AnswerSession> answer_;  // set before gRPC may react; null when refused
  rpc::Outbox<v1::GenerateResponse> outbox_;
  grpc::ByteBuffer writing_;  // the current message's bytes; owned like it
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  absl::Status end_status_;  // written once, before the outbox closes
};

}  // namespace tandem::router
