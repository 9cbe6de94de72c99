// Goal: calls that the router can answer from what it knows take none of the core's time, over HTTP
// and gRPC: they are answered while the core is stuck in one item.
#include <gmock/gmock.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/runtime/clock.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::PostOf;
using ::testing::HasSubstr;

class CoreFreeCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(front_ends_.Start(Session(), status_, service_));
    core_ = std::thread(
        [this] { EXPECT_TRUE(inbox_.TryPush(CoreCall{[](RouterCore&, absl::Time) {}})); });
    stuck_.WaitForNotification();
  }
  void TearDown() override {
    released_.Notify();
    core_.join();
    front_ends_.Stop();
  }
  AnswerSession::Deps Session() { return parts_.Session(inbox_, constraints_, long_work_); }

  FrontEndParts parts_;
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
  FrontEnds front_ends_;
  std::thread core_;
};

TEST_F(CoreFreeCalls, AreAnsweredOverHttp) {
  for (const char* path : {"/v1/models", "/live", "/ready", "/health", "/version", "/openapi.json",
                           "/docs", "/api/tags", "/api/version"}) {
    EXPECT_EQ(Ask(front_ends_.http->address(), GetOf(path)).status, 200) << path;
  }
  const auto tokens =
      Ask(front_ends_.http->address(), PostOf("/tokenize", R"({"prompt":"hello"})"));
  EXPECT_EQ(tokens.status, 200) << tokens.body;
  EXPECT_THAT(tokens.body, HasSubstr("\"max_model_len\":4096"));
  const auto text =
      Ask(front_ends_.http->address(), PostOf("/detokenize", R"({"tokens":[104,105]})"));
  EXPECT_EQ(text.status, 200) << text.body;
}

TEST_F(CoreFreeCalls, AreAnsweredOverGrpc) {
  {
    grpc::ClientContext context;
    v1::GetModelResponse model;
    const grpc::Status status = front_ends_.stub->GetModel(&context, {}, &model);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(model.numerics_id(), "n");
    EXPECT_EQ(model.context_tokens(), 4096);
  }
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("hello");
  const grpc::Status status = front_ends_.stub->Tokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(response.ids_size(), 0);
}

}  // namespace
}  // namespace tandem::router
