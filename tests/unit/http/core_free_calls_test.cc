// Goal: calls that the router can answer from what it knows take none of the core's time, over HTTP
// and gRPC: they are answered while the core is stuck in one item.
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "common/runtime/clock.h"
#include "tests/testing/http_client.h"
#include "tests/unit/http/stuck_core.h"

namespace tandem::router {
namespace {

using ::tandem::testing::Ask;
using ::tandem::testing::GetOf;
using ::tandem::testing::PostOf;
using ::testing::HasSubstr;

class CoreFreeCalls : public StuckCore {
 protected:
  CoreFreeCalls() : StuckCore(64) {}
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
