// Goal: an error says in a form that programs read which field is wrong, or when to ask again; its
// bytes are google.rpc's.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include "common/rpc/error_details.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tandem/v1/error_details.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

grpc::Status Ask(const std::string& address, const v1::GenerateRequest& request) {
  const auto stub =
      v1::Tandem::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse part;
  while (reader->Read(&part)) {
  }
  return reader->Finish();
}

v1::BadRequest BadRequestOf(const grpc::Status& status) {
  v1::ErrorStatus error;
  v1::BadRequest bad;
  EXPECT_TRUE(error.ParseFromString(status.error_details()));
  EXPECT_EQ(error.code(), status.error_code());
  EXPECT_EQ(error.message(), status.error_message());
  EXPECT_EQ(error.details_size(), 1) << error.DebugString();
  if (error.details_size() == 1) {
    EXPECT_EQ(error.details(0).type_url(), "type.googleapis.com/google.rpc.BadRequest");
    EXPECT_TRUE(bad.ParseFromString(error.details(0).value()));
  }
  return bad;
}

TEST(RichErrors, NameTheField) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--single-process"}));
  struct Case {
    std::function<void(v1::GenerateRequest&)> spoil;
    std::string field;
  };
  const Case cases[] = {
      {[](auto& r) { r.mutable_sampling()->set_top_p(7); }, "top_p"},
      {[](auto& r) { r.mutable_stop()->add_stop(""); }, "stop[0]"},
      {[](auto& r) { r.mutable_beam_search()->set_width(-1); }, "beam_search.width"},
      {[](auto& r) { r.set_n(1000); }, "n"},
      {[](auto& r) { r.clear_text(); }, "prompt"},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request;
    request.set_text("hello");
    c.spoil(request);
    const grpc::Status status = Ask(cluster->address(), request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.field;
    const v1::BadRequest bad = BadRequestOf(status);
    ASSERT_EQ(bad.field_violations_size(), 1) << c.field;
    EXPECT_EQ(bad.field_violations(0).field(), c.field);
    EXPECT_EQ(c.field + ": " + bad.field_violations(0).description(), status.error_message());
  }
}

TEST(RichErrors, SayWhenToAskAgain) {
  for (const auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kResourceExhausted}) {
    const grpc::Status status = rpc::ToGrpcWithDetails(absl::Status(code, "full"));
    v1::ErrorStatus error;
    v1::RetryInfo retry;
    ASSERT_TRUE(error.ParseFromString(status.error_details()));
    ASSERT_EQ(error.details_size(), 1);
    EXPECT_EQ(error.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
    ASSERT_TRUE(retry.ParseFromString(error.details(0).value()));
    EXPECT_GT(retry.retry_delay().seconds(), 0);
  }
}

TEST(RichErrors, AreLeftOutWhereThereIsNothingToSay) {
  EXPECT_TRUE(rpc::ToGrpcWithDetails(absl::OkStatus()).ok());
  for (const absl::Status& status : {absl::InternalError("x: y"), absl::AbortedError("x"),
                                     absl::InvalidArgumentError("the prompt is odd: very")})
    EXPECT_EQ(rpc::ToGrpcWithDetails(status).error_details(), "") << status;
}

}  // namespace
}  // namespace tandem::testing
