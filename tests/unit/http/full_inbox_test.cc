// Goal: while the router's inbox takes no more items, all calls that need the core get the same
// error, over HTTP and gRPC, and a refused request counts once everywhere.
#include <gmock/gmock.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "tests/testing/http_client.h"
#include "tests/unit/http/stuck_core.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::PostOf;
using ::testing::HasSubstr;

// The core is stuck in one item, and as many wait as there is room for.
class FullInbox : public StuckCore {
 protected:
  FullInbox() : StuckCore(8) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StuckCore::SetUp());
    while (inbox_.TryPush(Nothing())) {
    }
  }
  // Calls `ask`, which sends a request, and expects that the request counts as refused, once.
  void ExpectRefusedOnce(absl::FunctionRef<void()> ask) {
    const int64_t before = parts_.metrics.refused();
    SetLogLevel(LogLevel::kInfo);  // other tests of this process may have changed it
    ::testing::internal::CaptureStderr();
    ask();
    const std::string logged = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(logged, HasSubstr(" request ended "));
    EXPECT_THAT(logged, HasSubstr(" status=UNAVAILABLE "));
    EXPECT_EQ(parts_.metrics.refused(), before + 1);
    EXPECT_EQ(parts_.metrics.totals().requests, 0) << "none was taken on";
    const std::string text = parts_.metrics.Text({}, {});
    EXPECT_THAT(text, HasSubstr(absl::StrCat(
                          "tandem_requests_refused_total{model_name=\"m\",reason=\"unavailable\"} ",
                          before + 1, "\n")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("outcome=\"refused\"} ", before + 1, "\n")));
    EXPECT_THAT(text, HasSubstr("outcome=\"failed\"} 0\n"));
  }
};

TEST_F(FullInbox, IsUnavailableOverHttp) {
  const std::string& address = front_ends_.http->address();
  ExpectRefusedOnce([&] {
    const auto answer = Ask(address, PostOf("/v1/completions", R"({"prompt":"hello"})"));
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("inbox is full"));
  });
  const auto status = Ask(address, GetOf("/status"));
  EXPECT_EQ(status.status, 503) << status.body;
  EXPECT_THAT(status.body, HasSubstr("inbox is full"));
}

TEST_F(FullInbox, IsUnavailableOverGrpc) {
  ExpectRefusedOnce([&] {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.set_text("hello");
    const grpc::Status status = front_ends_.stub->Generate(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("inbox is full"));
  });
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  const grpc::Status status = front_ends_.stub->GetStatus(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("inbox is full"));
}

}  // namespace
}  // namespace tandem::router
