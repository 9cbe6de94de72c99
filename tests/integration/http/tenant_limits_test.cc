// Goal: limits of tenants hold in clusters of real processes: a quota over several routers, and a
// share of the KV blocks against a flood of cached prompts. A used-up quota keeps no tenant from
// its own work.
#include "tests/integration/http/tenants_fixture.h"

namespace tandem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kText[] = R"({"prompt":"x"})";

class TenantLimitsTest : public TenantsTest {
 protected:
  // Of all routers, in order.
  std::vector<std::string> HttpAddresses() {
    const std::string line = cluster_->LinesWith("ready: ").at(0);
    const std::string marker = "HTTP on ";
    const size_t begin = line.find(marker) + marker.size();
    return absl::StrSplit(line.substr(begin, line.find(';', begin) - begin), ", ");
  }
  static std::string GetWith(const std::string& path, const std::string& key) {
    return GetOf(path, KeyOf(key));
  }
  static std::string PostWith(const std::string& path, const std::string& key,
                              const std::string& body) {
    return PostOf(path, body, KeyOf(key));
  }
  static std::string KeyOf(const std::string& key) {
    return absl::StrCat("authorization: Bearer ", key, "\r\n");
  }
};

TEST_F(TenantLimitsTest, AQuotaHoldsOverRouters) {
  constexpr int kPerMinute = 60;
  Start(Line("alice", absl::StrCat("requests_per_minute=", kPerMinute)) + Line("bob"),
        {"--routers=2", "--decode=1", "--prefill=1"});
  const std::vector<std::string> routers = HttpAddresses();
  ASSERT_EQ(routers.size(), 2u);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  for (const std::string& router : routers) {
    const auto heard = [&] {
      return absl::StrContains(Ask(router, GetOf("/metrics")).body, "\ntandem_quota_routers 1");
    };
    while (!heard() && absl::Now() < deadline) {
    }
    EXPECT_TRUE(heard()) << router;
  }
  const std::string counted = PostWith("/tokenize", "alice", kText);
  const absl::Time begin = absl::Now();
  int taken = 0;
  for (const std::string& router : routers) {
    for (int i = 0; i < 2 * kPerMinute; ++i) taken += Ask(router, counted).status == 200 ? 1 : 0;
  }
  const double refilled = absl::ToDoubleSeconds(absl::Now() - begin) * kPerMinute / 60;
  EXPECT_LE(taken, kPerMinute + refilled + 1);
  // What is left comes to the router that is asked.
  const absl::Time later = absl::Now() + absl::Seconds(60);
  while (taken < kPerMinute && absl::Now() < later)
    taken += Ask(routers[0], counted).status == 200 ? 1 : 0;
  EXPECT_EQ(Ask(routers[0], PostWith("/tokenize", "bob", kText)).status, 200);
}

TEST_F(TenantLimitsTest, AUsedUpQuotaKeepsNoTenantFromItsOwnWork) {
  Start(Line("alice", "requests_per_minute=3 tokens_per_minute=200"), {"--hash-step-time=5ms"});
  const std::string& router = cluster_->http_address();
  const auto status = [&router](const std::string& request) { return Ask(router, request).status; };
  // Looking uses no quota: three requests are taken afterwards.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(status(GetWith("/v1/models", "alice")), 200);
  const HttpAnswer kept =
      Ask(router, PostWith("/v1/responses", "alice", R"({"input":"x","max_output_tokens":1})"));
  ASSERT_EQ(kept.status, 200) << kept.body;
  const std::string response = "/v1/responses/" + kept.Json()["id"].get<std::string>();
  const auto running = Begin("alice", Request("long", 4000));
  v1::GenerateRequest large = Request("large", 1);
  large.set_text(std::string(3000, 'x'));
  ASSERT_TRUE(Generate("alice", large).ok());
  // Now the tokens are used up for many minutes.
  EXPECT_EQ(Generate("alice", Request("more", 1)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status(PostWith("/tokenize", "alice", kText)), 429);
  for (const char* path : {"/v1/models", "/v1/models/hash", "/api/tags", "/api/ps", "/props"})
    EXPECT_EQ(status(GetWith(path, "alice")), 200) << path;
  EXPECT_EQ(status(GetWith(response, "alice")), 200);
  EXPECT_EQ(status(PostWith(response + "/cancel", "alice", "{}")), 400) << "it has ended";
  EXPECT_EQ(status("DELETE " + response + " HTTP/1.1\r\nhost: x\r\n" + KeyOf("alice") + "\r\n"),
            200);
  EXPECT_THAT(Running("alice"), ElementsAre("long"));
  EXPECT_TRUE(Abort("alice", "long").ok());
  v1::Finished finished;
  EXPECT_TRUE(running->Read(&finished).ok());
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_ABORTED);
  v1::RequestTrace trace;
  EXPECT_TRUE(Trace("alice", "long", trace).ok());
  grpc::ClientContext context;
  Authorize(context, "alice");
  v1::GetModelResponse model;
  EXPECT_TRUE(stub_->GetModel(&context, v1::GetModelRequest(), &model).ok());
}

TEST_F(TenantLimitsTest, AFloodOfOneTenantLeavesOthersCached) {
  // 64 blocks of 32 tokens on the one node; alice may hold a quarter.
  Start(Line("alice", "kv_share=25%") + Line("bob"),
        {"--prefill=0", "--decode=1", "--kv-blocks=64"});
  const auto cached = [this](const std::string& tenant, const std::string& prompt) {
    v1::GenerateRequest request = Request("", 1);
    request.set_text(prompt + std::string(60, '.'));
    v1::Finished finished;
    EXPECT_TRUE(Generate(tenant, request, &finished).ok());
    return finished.usage().cached_tokens();
  };
  EXPECT_EQ(cached("bob", "bob's"), 0);
  for (int i = 0; i < 60; ++i) cached("alice", absl::StrCat("prompt ", i));
  EXPECT_GT(cached("bob", "bob's"), 0);
  EXPECT_GT(cached("alice", "prompt 59"), 0) << "it has a cache of its own";
  EXPECT_EQ(cached("alice", "prompt 0"), 0);
  v1::GenerateRequest large = Request("", 1);
  large.set_text(std::string(600, 'x'));
  const grpc::Status refused = Generate("alice", large);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("alice's share of the KV blocks holds 512"));
}

}  // namespace
}  // namespace tandem::testing
