// Goal: calls that the router can answer from what it knows take none of the core's time, over HTTP
// and gRPC: they are answered while the core is stuck in one item.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/rpc/server.h"
#include "common/runtime/clock.h"
#include "router/front_end/grpc/client_service.h"
#include "router/front_end/http/http_api.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::PostOf;
using ::testing::HasSubstr;

class CoreFreeCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpApi::Deps deps{Session(), status_, [] { return true; }, [] { return 4096; },
                       [] { return absl::ZeroDuration(); }};
    deps.quota_routers = [] { return 0; };
    FrontEndOptions options;
    options.server.address = "127.0.0.1:0";
    ASSERT_OK_AND_ASSIGN(http_, HttpApi::Start(options, std::move(deps)));
    ASSERT_OK_AND_ASSIGN(server_,
                         rpc::Server::Start("127.0.0.1:0", {&service_}, rpc::kClientLimits));
    stub_ = v1::Tandem::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    core_ = std::thread(
        [this] { EXPECT_TRUE(inbox_.TryPush(CoreCall{[](RouterCore&, absl::Time) {}})); });
    stuck_.WaitForNotification();
  }
  void TearDown() override {
    released_.Notify();
    core_.join();
    http_->Stop();
    server_->Shutdown(absl::ZeroDuration());
  }
  AnswerSession::Deps Session() {
    return {*assets_, inbox_,       *random_,   metrics_, traces_,
            shedder_, constraints_, long_work_, tiers_,   running_};
  }

  const std::unique_ptr<ModelAssets> assets_ = ModelAssets::ForHashEngine().value();
  const std::unique_ptr<Random> random_ = NewSystemRandom();
  const ServiceTiers tiers_;
  RequestMetrics metrics_{"m"};
  TraceStore traces_{0};
  LoadShedder shedder_{{}, metrics_};
  RunningAnswers running_;
  absl::Notification stuck_, released_;
  Inbox inbox_{64, [this](std::vector<InboxItem>&) {
                 if (!stuck_.HasBeenNotified()) stuck_.Notify();
                 released_.WaitForNotification();
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  ClientService service_{Session(), status_,
                         [] { return ServedFleet{.numerics_id = "n", .context_tokens = 4096}; }};
  std::unique_ptr<HttpApi> http_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::Tandem::Stub> stub_;
  std::thread core_;
};

TEST_F(CoreFreeCalls, AreAnsweredOverHttp) {
  for (const char* path : {"/v1/models", "/live", "/ready", "/health", "/version", "/openapi.json",
                           "/docs", "/api/tags", "/api/version"}) {
    EXPECT_EQ(Ask(http_->address(), GetOf(path)).status, 200) << path;
  }
  const auto tokens = Ask(http_->address(), PostOf("/tokenize", R"({"prompt":"hello"})"));
  EXPECT_EQ(tokens.status, 200) << tokens.body;
  EXPECT_THAT(tokens.body, HasSubstr("\"max_model_len\":4096"));
  const auto text = Ask(http_->address(), PostOf("/detokenize", R"({"tokens":[104,105]})"));
  EXPECT_EQ(text.status, 200) << text.body;
}

TEST_F(CoreFreeCalls, AreAnsweredOverGrpc) {
  {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    const grpc::Status status = stub_->GetModel(&context, {}, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(model.numerics_id(), "n");
    EXPECT_EQ(model.context_tokens(), 4096);
  }
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("hello");
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ids_size(), 0);
}

}  // namespace
}  // namespace tandem::router
