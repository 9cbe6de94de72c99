// Goal: over gRPC a call that needs a short message does not parse a long one, because gRPC's
// threads parse those messages one by one, and unknown fields take many times their bytes.
#include <gmock/gmock.h>

#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

// A minute at most: a call that waits for a core fails its test.
std::unique_ptr<grpc::ClientContext> NewContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
  return context;
}

// A message of `bytes`, an even number, in fields that it does not know.
template <typename Request>
Request Unknown(size_t bytes) {
  Request request;
  auto* unknown = request.GetReflection()->MutableUnknownFields(&request);
  for (size_t i = 0; i < bytes; i += 2) unknown->AddLengthDelimited(12, "");
  EXPECT_EQ(request.ByteSizeLong(), bytes);
  return request;
}

class MessageBytes : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(front_ends_.Start(Session(), status_, service_)); }
  void TearDown() override { front_ends_.Stop(); }
  AnswerSession::Deps Session() { return parts_.Session(inbox_, constraints_, long_work_); }

  template <typename Request, typename Response>
  void ExpectRefused(grpc::Status (v1::Tandem::Stub::*call)(grpc::ClientContext*, const Request&,
                                                            Response*)) {
    Response response;
    const grpc::Status refused =
        (front_ends_.stub.get()->*call)(NewContext().get(), Unknown<Request>(1 << 20), &response);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(refused.error_message(), "the message has 1048576 bytes, expected at most 4096");
  }

  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>&) {}};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  ClientService service_{Session(), status_, [] { return ServedFleet(); }};
  FrontEnds front_ends_;
};

TEST_F(MessageBytes, LongOnesOfCallsThatNeedShortOnesAreRefused) {
  ExpectRefused(&v1::Tandem::Stub::Abort);
  ExpectRefused(&v1::Tandem::Stub::GetTrace);
  ExpectRefused(&v1::Tandem::Stub::ListRequests);
  ExpectRefused(&v1::Tandem::Stub::GetModel);
  ExpectRefused(&v1::Tandem::Stub::GetStatus);
}

TEST_F(MessageBytes, TheLongestOfTheseAreRead) {
  v1::GetModelResponse model;
  EXPECT_TRUE(
      front_ends_.stub->GetModel(NewContext().get(), Unknown<v1::GetModelRequest>(4096), &model)
          .ok());
}

TEST_F(MessageBytes, TextMayBeLong) {
  auto request = Unknown<v1::TokenizeRequest>(1 << 20);
  request.set_text("hello");
  v1::TokenizeResponse tokens;
  EXPECT_TRUE(front_ends_.stub->Tokenize(NewContext().get(), request, &tokens).ok());
  EXPECT_GT(tokens.ids_size(), 0);
}

}  // namespace
}  // namespace tandem::router
