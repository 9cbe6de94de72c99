// The parts of a router that its front ends need, for tests that play the router's core themselves.
//   FrontEndParts parts_;
//   Inbox inbox_{64, [this](std::vector<InboxItem>& items) { … }};  // the core
//   ASSERT_OK_AND_ASSIGN(http_, StartHttp(parts_.Session(inbox_, constraints_, long_work_), …));
// Thread safety: as the parts'. Owner: a test, which ends its front ends first.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "router/front_end/grpc/client_service.h"
#include "router/front_end/http/http_api.h"

namespace tandem::router {

struct FrontEndParts {
  explicit FrontEndParts(std::unique_ptr<ModelAssets> model = ModelAssets::ForHashEngine().value())
      : assets(std::move(model)) {}

  AnswerSession::Deps Session(Inbox& inbox, guided::CompileQueue& constraints,
                              LongWork& long_work) {
    return {*assets, inbox,       *random,   metrics, traces,
            shedder, constraints, long_work, tiers,   running};
  }

  const std::unique_ptr<ModelAssets> assets;
  const std::unique_ptr<Random> random = NewSystemRandom();
  const ServiceTiers tiers;
  RequestMetrics metrics{"m"};
  TraceStore traces{0};
  LoadShedder shedder{{}, metrics};
  RunningAnswers running;
};

// An HTTP front end at a free port of this machine; the rest of `options` counts as it is.
inline absl::StatusOr<std::unique_ptr<HttpApi>> StartHttp(
    const AnswerSession::Deps& session, StatusBoard& status, HttpApiOptions options = {},
    std::function<bool()> ready = [] { return true; }) {
  HttpApi::Deps deps{session, status, std::move(ready), [] { return 4096; },
                     [] { return absl::ZeroDuration(); }};
  deps.quota_routers = [] { return 0; };
  deps.prompt_tokens = [] { return 4096; };
  options.server.address = "127.0.0.1:0";
  return HttpApi::Start(options, std::move(deps));
}

// Both front ends, and a client of the gRPC one.
struct FrontEnds {
  absl::Status Start(
      const AnswerSession::Deps& session, StatusBoard& status, ClientService& service,
      std::function<bool()> ready = [] { return true; }) {
    ASSIGN_OR_RETURN(http, StartHttp(session, status, {}, std::move(ready)));
    ASSIGN_OR_RETURN(server, rpc::Server::Start("127.0.0.1:0", {&service}, rpc::kClientLimits));
    stub = v1::Tandem::NewStub(
        grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
    return absl::OkStatus();
  }
  void Stop() const {
    http->Stop();
    server->Shutdown(absl::ZeroDuration());
  }

  std::unique_ptr<HttpApi> http;
  std::unique_ptr<rpc::Server> server;
  std::unique_ptr<v1::Tandem::Stub> stub;
};

}  // namespace tandem::router
