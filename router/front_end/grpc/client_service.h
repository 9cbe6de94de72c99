// The gRPC service that clients call. It parses and tokenizes requests and submits them to the
// core; it decides nothing about them. It takes calls whose requests carry text as raw bytes, so
// that it can name the field that is not UTF-8. Thread safety: gRPC calls service methods on any of
// its threads; BeginDrain from any thread; RequireKeys before serving. Owner: RouterServer.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/status_board.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::router {

using ClientServiceBase = v1::Tandem::WithRawCallbackMethod_Generate<
    v1::Tandem::WithRawCallbackMethod_Abort<v1::Tandem::WithRawCallbackMethod_Tokenize<
        v1::Tandem::WithCallbackMethod_Detokenize<v1::Tandem::WithCallbackMethod_GetModel<
            v1::Tandem::WithCallbackMethod_GetStatus<v1::Tandem::WithCallbackMethod_GetTrace<
                v1::Tandem::WithCallbackMethod_ListRequests<v1::Tandem::Service>>>>>>>>;

class ClientService final : public ClientServiceBase {
 public:
  // All that `deps` refers to, and `status`, outlive the service.
  ClientService(const AnswerSession::Deps& deps, StatusBoard& status)
      : deps_(deps), assets_(deps.assets), inbox_(deps.inbox), status_(status) {}

  // Every call but GetStatus then needs one of `keys`, as over HTTP all but /metrics do. REQUIRES:
  // not serving yet.
  void RequireKeys(ApiKeys* keys) { keys_ = keys; }
  // GetStatus then needs an admin's key, or the operator key of `fleet_secret`. REQUIRES: as
  // RequireKeys.
  void GuardStatus(const std::string& fleet_secret);
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
  grpc::ServerUnaryReactor* ListRequests(grpc::CallbackServerContext* context,
                                         const v1::ListRequestsRequest* request,
                                         v1::ListRequestsResponse* response) override;

 private:
  // Checks the key in a call's metadata and counts a request of its tenant; null when no keys are
  // required.
  absl::StatusOr<std::shared_ptr<Tenant>> Admit(const grpc::CallbackServerContext& context) const;
  // The same for calls that need the scope infer.
  absl::StatusOr<std::shared_ptr<Tenant>> AdmitToInfer(
      const grpc::CallbackServerContext& context) const;
  // Whether a call may have the status.
  absl::Status CheckMaySeeStatus(const grpc::CallbackServerContext& context) const;
  // kUnavailable when the router is too overloaded for this call. `resumes`: see LoadShedder.
  absl::Status Shed(absl::FunctionRef<bool()> resumes) const;
  absl::Status FillTokens(const v1::TokenizeRequest& request, v1::TokenizeResponse& response) const;
  absl::Status WriteTokens(const grpc::ByteBuffer& bytes, grpc::ByteBuffer& response) const;
  // Runs `fill` on the core's strand, then ends the call. `late`: in the low priority class, after
  // requests that wait.
  grpc::ServerUnaryReactor* RunOnCore(grpc::CallbackServerContext* context,
                                      std::function<void(RouterCore&, absl::Time)> fill,
                                      bool late = false);

  const AnswerSession::Deps deps_;
  const ModelAssets& assets_;
  Inbox& inbox_;
  StatusBoard& status_;
  ApiKeys* keys_ = nullptr;
  bool guards_status_ = false;
  std::string operator_key_hash_;  // empty without a secret
  std::atomic<bool> draining_{false};
};

}  // namespace tandem::router
