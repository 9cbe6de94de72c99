// Goal: while the router's inbox takes no more items, all calls that need the core get the same
// error, over HTTP and gRPC.
#include <gmock/gmock.h>

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
};

TEST_F(FullInbox, IsUnavailableOverHttp) {
  const std::string& address = front_ends_.http->address();
  const auto answer = Ask(address, PostOf("/v1/completions", R"({"prompt":"hello"})"));
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("inbox is full"));
  const auto status = Ask(address, GetOf("/status"));
  EXPECT_EQ(status.status, 503) << status.body;
  EXPECT_THAT(status.body, HasSubstr("inbox is full"));
}

TEST_F(FullInbox, IsUnavailableOverGrpc) {
  {
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.set_text("hello");
    const grpc::Status status = front_ends_.stub->Generate(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("inbox is full"));
  }
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  const grpc::Status status = front_ends_.stub->GetStatus(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("inbox is full"));
}

}  // namespace
}  // namespace tandem::router
