// The service clients call. Parses, tokenizes and hands over; decides nothing.
// Thread safety: service methods by gRPC.
#pragma once

#include <atomic>
#include <memory>

#include "common/runtime/random.h"
#include "router/model_assets.h"
#include "router/server/inbox.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::router {

class ClientService final : public v1::Tandem::CallbackService {
 public:
  // All references outlive the service; `random` is thread-safe.
  ClientService(const ModelAssets& assets, Inbox& inbox, Random& random)
      : assets_(assets), inbox_(inbox), random_(random) {}

  // From now on Generate is refused with kUnavailable.
  void BeginDrain() { draining_ = true; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;

 private:
  // Runs `fill` on the router thread, then ends the call.
  grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context,
                                std::function<void(RouterCore&, absl::Time)> fill);

  const ModelAssets& assets_;
  Inbox& inbox_;
  Random& random_;
  std::atomic<bool> draining_{false};
};

}  // namespace tandem::router
