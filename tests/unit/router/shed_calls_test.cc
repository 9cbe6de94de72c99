// Goal: over gRPC an overloaded router refuses calls that ask for work, saying so and when to ask
// again, and takes those that resume an answer and those that ask how it does.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include "common/rpc/server.h"
#include "common/runtime/clock.h"
#include "router/front_end/grpc/client_service.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tandem/v1/error_details.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

constexpr absl::Duration kDelay = absl::Milliseconds(100);
// The predicted wait in the core's queue: too long, but not for a resumed request.
constexpr absl::Duration kExpected = absl::Milliseconds(300);

class ShedCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    // One that waits, and one that was taken after it had waited for as long.
    const absl::Time now = RealClock().Now();
    shedder_.Enter(LoadShedder::FrontEndKind::kGrpc, now);
    ASSERT_OK(
        shedder_.Dequeued({.front_end = LoadShedder::FrontEndKind::kGrpc, .since = now - kExpected},
                          /*resumes=*/false, now));
    shedder_.Enter(LoadShedder::FrontEndKind::kGrpc, now);
    // A queue has stood until now.
    for (absl::Duration ago = 2 * kInterval; ago > absl::ZeroDuration(); ago -= kInterval / 1000) {
      shedder_
          .Admit(LoadShedder::FrontEndKind::kGrpc, absl::Hours(1), now - ago, [] { return false; })
          .IgnoreError();
    }
    refused_ = shedder_.refused();
    ASSERT_OK_AND_ASSIGN(server_,
                         rpc::Server::Start("127.0.0.1:0", {&service_}, rpc::kClientLimits));
    stub_ = v1::Tandem::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  grpc::Status Generate(int32_t resume_from_token) {
    v1::GenerateRequest request;
    request.set_text("hello");
    request.set_request_id("one");
    request.mutable_sampling()->set_seed(1);
    request.mutable_stop()->set_max_tokens(10);
    request.set_resume_from_token(resume_from_token);
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse part;
    while (reader->Read(&part)) {
    }
    return reader->Finish();
  }

  // So long that no machine is too slow for what follows to come within a part of it.
  static constexpr absl::Duration kInterval = absl::Hours(1);

  const std::unique_ptr<ModelAssets> assets_ = ModelAssets::ForHashEngine().value();
  const std::unique_ptr<Random> random_ = NewSystemRandom();
  const ServiceTiers tiers_;
  RequestMetrics metrics_{"m"};
  TraceStore traces_{0};
  LoadShedder shedder_{{.delay = kDelay, .interval = kInterval}, metrics_};
  RunningAnswers running_;
  // Nobody places requests: those that get so far are refused with another code.
  Inbox inbox_{1, [](std::vector<InboxItem>& items) {
                 for (InboxItem& item : items) {
                   if (auto* submit = std::get_if<SubmitRequest>(&item)) {
                     submit->session->Fail(absl::AbortedError("reached the core"));
                   }
                 }
               }};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  ClientService service_{{*assets_, inbox_, *random_, metrics_, traces_, shedder_, constraints_,
                          long_work_, tiers_, running_},
                         status_,
                         [] { return ServedFleet(); }};
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::Tandem::Stub> stub_;
  int64_t refused_ = 0;
};

TEST_F(ShedCalls, SayWhyAndWhenToAskAgain) {
  const grpc::Status status = Generate(0);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(status.error_message(),
              ::testing::HasSubstr("overloaded: a request would wait 300 ms"));
  v1::ErrorStatus error;
  v1::RetryInfo retry;
  ASSERT_TRUE(error.ParseFromString(status.error_details()));
  ASSERT_EQ(error.details_size(), 1);
  ASSERT_TRUE(retry.ParseFromString(error.details(0).value()));
  EXPECT_GT(retry.retry_delay().seconds(), 0);
  EXPECT_EQ(shedder_.refused(), refused_ + 1);
}

TEST_F(ShedCalls, SpareWhoResumes) {
  const grpc::Status status = Generate(7);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED) << status.error_message();
  EXPECT_EQ(shedder_.refused(), refused_);
}

TEST_F(ShedCalls, RefuseTokenizingToo) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("hello");
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace tandem::router
