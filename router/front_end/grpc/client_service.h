// The service clients call. Parses, tokenizes and hands over; decides nothing. Calls whose requests
// carry text are taken as bytes, so that text which is not UTF-8 gets an answer that says so.
// Thread safety: service methods by gRPC.
#pragma once

#include <atomic>
#include <memory>

#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::router {

using ClientServiceBase =
    v1::Tandem::WithRawCallbackMethod_Generate<v1::Tandem::WithRawCallbackMethod_Abort<
        v1::Tandem::WithRawCallbackMethod_Tokenize<v1::Tandem::WithCallbackMethod_Detokenize<
            v1::Tandem::WithCallbackMethod_GetModel<v1::Tandem::WithCallbackMethod_GetStatus<
                v1::Tandem::WithCallbackMethod_GetTrace<v1::Tandem::Service>>>>>>>;

class ClientService final : public ClientServiceBase {
 public:
  explicit ClientService(const AnswerSession::Deps& deps)
      : deps_(deps), assets_(deps.assets), inbox_(deps.inbox) {}

  // Calls ask for one of `keys`, as HTTP does; but not GetStatus, like /metrics. Before serving.
  void RequireKeys(ApiKeys* keys) { keys_ = keys; }
  // From now on Generate is refused with kUnavailable.
  void BeginDrain() { draining_ = true; }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* GetTrace(grpc::CallbackServerContext* context,
                                     const v1::GetTraceRequest* request,
                                     v1::GetTraceResponse* response) override;

 private:
  // The key of a call's metadata; null when none is asked for.
  absl::StatusOr<ApiKeys::Key*> Admit(const grpc::CallbackServerContext& context) const;
  // Not OK: the router has too little time for this call. `resumes`: see LoadShedder.
  absl::Status Shed(absl::FunctionRef<bool()> resumes) const;
  absl::Status FillTokens(const v1::TokenizeRequest& request, v1::TokenizeResponse& response) const;
  // Runs `fill` in the router's turn, then ends the call. `late`: after requests that wait.
  grpc::ServerUnaryReactor* RunOnCore(grpc::CallbackServerContext* context,
                                      std::function<void(RouterCore&, absl::Time)> fill,
                                      bool late = false);

  const AnswerSession::Deps deps_;
  const ModelAssets& assets_;
  Inbox& inbox_;
  ApiKeys* keys_ = nullptr;
  std::atomic<bool> draining_{false};
};

}  // namespace tandem::router
