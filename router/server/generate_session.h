// One Generate call: the stream to one client. Turns core events into text and messages, holds what
// a slow client has not read in a bound of its own, and tells the router thread when the client is
// gone. Thread safety: methods from the router thread; reactions from gRPC; a mutex-free hand-over
// through the outbox. Lifetime: shared between gRPC (until OnDone) and the router thread (until the
// request's end).
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/outbox.h"
#include "router/model_assets.h"
#include "router/pipeline/answer_assembler.h"
#include "router/server/inbox.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class GenerateSession final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public std::enable_shared_from_this<GenerateSession> {
 public:
  // Validates, tokenizes and submits `request`, on the calling (gRPC) thread. Errors end the call
  // with their status. `inbox` and `assets` outlive the session.
  static std::shared_ptr<GenerateSession> Start(const v1::GenerateRequest& request, absl::Time now,
                                                const ModelAssets& assets, Inbox& inbox,
                                                Random& random);

  GenerateSession(const ModelAssets& assets, Inbox& inbox)
      : assets_(assets), inbox_(inbox), outbox_(kOutboxMax) {}

  // ---- router thread
  // ----------------------------------------------------------------------------------- The request
  // was taken on: tells the client.
  void Accepted();
  // What the request should end with because of this event (a stop string, a client that does not
  // read), or kNone.
  request::FinishReason OnEvent(const ClientEvent& event);
  // Hands the reactor to gRPC, which keeps it until OnDone.
  GenerateSession* Keep();
  // Ends the call with an error.
  void Fail(const absl::Status& status);

  // ---- gRPC
  // --------------------------------------------------------------------------------------------
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Messages a client may leave unread before its request, and it alone, is ended.
  static constexpr size_t kOutboxMax = 16384;

  absl::Status Prepare(const v1::GenerateRequest& request, absl::Time now, Random& random,
                       RequestInput& input);
  void SendTokens(const TokensReady& event);
  void SendFinished(const RequestDone& event);
  void Write(v1::GenerateResponse response);
  // Serializes and writes the outbox's current message.
  void WriteCurrent();
  // The first caller decides the call's status.
  void End(const absl::Status& status);
  void FinishOnce();

  const ModelAssets& assets_;
  Inbox& inbox_;
  std::shared_ptr<GenerateSession> self_;  // held until OnDone
  RequestId id_;
  v1::Started started_;
  bool return_tokens_ = false;
  std::unique_ptr<AnswerAssembler> assembler_;  // router thread
  int32_t output_tokens_ = 0;                   // router thread; in the answer, after stop strings
  rpc::Outbox<v1::GenerateResponse> outbox_;
  grpc::ByteBuffer writing_;  // the current message's bytes; owned like it
  std::atomic<bool> ending_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> over_{false};  // the client has its end; a cancel changes nothing
  absl::Status end_status_;        // written once, before the outbox closes
};

}  // namespace tandem::router
