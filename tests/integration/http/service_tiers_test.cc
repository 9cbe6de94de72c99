// Goal: over every API, a request is served by the tier that it names and that its key may use, the
// answer, the trace, the list of running requests and the metrics tell which, and its text is the
// same as in any other tier; any other name is refused.
#include "tests/integration/http/tenants_fixture.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ServiceTiersTest : public TenantsTest {
 protected:
  ServiceTiersTest() {
    Start(Line("alice") + Line("bob", "service_tiers=flex,default"),
          {"--service-tiers=priority ttft=20s gap=5s priority=-5,flex late=serve",
           "--hash-step-time=5ms"});
  }
  HttpAnswer Post(const std::string& path, const std::string& tenant, json body) {
    body["seed"] = 1;
    return Ask(cluster_->http_address(),
               PostOf(path, body.dump(), "authorization: Bearer " + tenant + "\r\n"));
  }
  json Chat(const std::string& tenant, const json& tier) {
    json body = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 4}};
    if (!tier.is_null()) body["service_tier"] = tier;
    return json::parse(Post("/v1/chat/completions", tenant, body).body);
  }
};

TEST_F(ServiceTiersTest, TheAnswerTellsTheTierAndIsTheSameInEach) {
  const json unnamed = Chat("alice", nullptr);
  EXPECT_FALSE(unnamed.contains("service_tier"));
  const json text = unnamed["choices"][0]["message"];
  for (const auto& [asked, served] :
       {std::pair("auto", "default"), std::pair("default", "default"), std::pair("flex", "flex"),
        std::pair("priority", "priority"), std::pair("scale", "default")}) {
    const json answer = Chat("alice", asked);
    EXPECT_EQ(answer["service_tier"], served) << asked;
    EXPECT_EQ(answer["choices"][0]["message"], text) << asked;
  }
  EXPECT_EQ(Chat("bob", "auto")["service_tier"], "flex") << "his first";
}

TEST_F(ServiceTiersTest, EveryApiHasIt) {
  const json hi = {{{"role", "user"}, {"content", "Hi"}}};
  const auto has = [&](const std::string& path, json body, const std::string& expected) {
    body["service_tier"] = "flex";
    EXPECT_THAT(Post(path, "alice", body).body, HasSubstr(expected)) << path;
    body["stream"] = true;
    EXPECT_THAT(Post(path, "alice", body).body, HasSubstr(expected)) << path << ", streamed";
  };
  has("/v1/completions", {{"prompt", "Hi"}, {"max_tokens", 2}}, R"("service_tier":"flex")");
  has("/v1/chat/completions", {{"messages", hi}, {"max_tokens", 2}}, R"("service_tier":"flex")");
  has("/v1/responses", {{"input", "Hi"}, {"max_output_tokens", 2}}, R"("service_tier":"flex")");
  has("/v1/messages", {{"messages", hi}, {"max_tokens", 2}}, R"("service_tier":"flex")");
  EXPECT_THAT(Post("/v1/messages", "alice",
                   {{"messages", hi}, {"max_tokens", 2}, {"service_tier", "standard_only"}})
                  .body,
              HasSubstr(R"("service_tier":"standard")"));
  EXPECT_EQ(
      Post("/api/chat", "alice", {{"model", "hash"}, {"messages", hi}, {"service_tier", "gold"}})
          .status,
      400);
  // Over gRPC the first message tells it.
  grpc::ClientContext context;
  Authorize(context, "alice");
  v1::GenerateRequest request = Request("r", 2);
  request.set_service_tier("priority");
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse part;
  ASSERT_TRUE(reader->Read(&part));
  EXPECT_EQ(part.started().service_tier(), "priority");
  while (reader->Read(&part)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServiceTiersTest, OtherTiersAreRefused) {
  const json body = {{"prompt", "Hi"}, {"max_tokens", 2}};
  const auto ask = [&](const std::string& tenant, const json& tier) {
    json named = body;
    named["service_tier"] = tier;
    return Post("/v1/completions", tenant, named);
  };
  const HttpAnswer unknown = ask("alice", "gold");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_THAT(unknown.body, HasSubstr("expected auto or one of default, priority, flex"));
  const HttpAnswer forbidden = ask("bob", "priority");
  EXPECT_EQ(forbidden.status, 403);
  EXPECT_THAT(forbidden.body, HasSubstr("this key may use: flex or default"));
  EXPECT_EQ(ask("alice", 5).status, 400);
}

TEST_F(ServiceTiersTest, TracesListsAndMetricsTellIt) {
  v1::GenerateRequest request = Request("long", 4000);
  request.set_service_tier("priority");
  const auto running = Begin("alice", request);
  {
    grpc::ClientContext context;
    Authorize(context, "alice");
    v1::ListRequestsResponse list;
    ASSERT_TRUE(stub_->ListRequests(&context, {}, &list).ok());
    ASSERT_EQ(list.requests_size(), 1);
    EXPECT_EQ(list.requests(0).service_tier(), "priority");
  }
  EXPECT_TRUE(Abort("alice", "long").ok());
  EXPECT_TRUE(running->Read().ok());
  request = Request("short", 3);
  request.set_service_tier("priority");
  EXPECT_TRUE(Generate("alice", request).ok());
  v1::RequestTrace trace;
  ASSERT_TRUE(Trace("alice", "short", trace).ok());
  EXPECT_EQ(trace.goals().service_tier(), "priority");
  EXPECT_EQ(trace.goals().first_token_ms(), 20'000);
  EXPECT_EQ(trace.goals().gap_ms(), 5'000);
  const std::string metrics = Ask(cluster_->http_address(), GetOf("/metrics")).body;
  for (const char* line : {R"(service_tier="priority",outcome="in_time"} 1)",
                           R"(service_tier="priority",outcome="aborted"} 1)",
                           R"(service_tier="flex",outcome="in_time"} 0)"})
    EXPECT_THAT(metrics, HasSubstr(line));
  EXPECT_THAT(metrics, HasSubstr("tandem_tier_first_token_seconds_count{"));
}

TEST(ServiceTiersFlag, ABadTierStopsTheRouter) {
  const auto cluster = TestCluster::Start({"--engine=hash", "--service-tiers=flex weight=3"});
  EXPECT_FALSE(cluster.ok());
}

}  // namespace
}  // namespace tandem::testing
