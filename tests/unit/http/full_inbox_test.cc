// Goal: while the router's inbox takes no more items, all calls that need the core get the same
// error, over HTTP and gRPC.
#include <gmock/gmock.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::PostOf;
using ::testing::HasSubstr;

// The core is stuck in one item, and as many wait as there is room for.
class FullInbox : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(front_ends_.Start(Session(), status_, service_));
    core_ = std::thread([this] { EXPECT_TRUE(inbox_.TryPush(Nothing())); });
    stuck_.WaitForNotification();
    while (inbox_.TryPush(Nothing())) {
    }
  }
  void TearDown() override {
    released_.Notify();
    if (core_.joinable()) core_.join();
    front_ends_.Stop();
  }
  static CoreCall Nothing() {
    return {[](RouterCore&, absl::Time) {}};
  }
  AnswerSession::Deps Session() { return parts_.Session(inbox_, constraints_, long_work_); }

  FrontEndParts parts_;
  absl::Notification stuck_, released_;
  Inbox inbox_{8, [this](std::vector<InboxItem>&) {
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
