// Goal: with a port for operators, clients' ports tell nothing of the cluster and operators' serve
// no answers; where there are keys, operators need an admin's; a drain that an operator asks for
// refuses new requests, lets running ones end, and is seen by probes on both ports.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <fstream>

#include "router/front_end/api_keys.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kOperatorPaths[] = {"/metrics", "/load", "/status", "/traces"};

std::string Key(const std::string& key) { return "authorization: Bearer " + key + "\r\n"; }

grpc::StatusCode StatusOver(const std::string& grpc_address, const std::string& key) {
  const auto stub =
      v1::Tandem::NewStub(grpc::CreateChannel(grpc_address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
  v1::GetStatusResponse response;
  return stub->GetStatus(&context, {}, &response).error_code();
}

TEST(AdminPort, EachPortServesItsOwn) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--admin=0"}));
  const std::string clients = cluster->http_address(), admin = cluster->admin_address();
  ASSERT_NE(admin, "");
  ASSERT_NE(admin, clients);
  for (const char* path : kOperatorPaths) {
    const HttpAnswer refused = Ask(clients, GetOf(path));
    EXPECT_EQ(refused.status, 404) << path;
    EXPECT_THAT(refused.body, HasSubstr("port for operators (--admin)"));
    EXPECT_EQ(Ask(admin, GetOf(path)).status, 200) << path;
  }
  const std::string post = PostOf("/v1/completions", R"({"prompt": "p", "max_tokens": 2})");
  EXPECT_EQ(Ask(clients, post).status, 200);
  const HttpAnswer elsewhere = Ask(admin, post);
  EXPECT_EQ(elsewhere.status, 404);
  EXPECT_THAT(elsewhere.body, HasSubstr("port for clients"));
  EXPECT_EQ(Ask(clients, PostOf("/drain", "{}")).status, 404);
  for (const std::string& address : {clients, admin}) {
    for (const char* path : {"/health", "/live", "/version"})
      EXPECT_EQ(Ask(address, GetOf(path)).status, 200) << path;
  }
  EXPECT_THAT(Ask(clients, GetOf("/openapi.json")).body, Not(HasSubstr("/metrics")));
  EXPECT_THAT(Ask(admin, GetOf("/openapi.json")).body, HasSubstr("/drain"));
  EXPECT_EQ(StatusOver(cluster->address(), ""), grpc::StatusCode::OK) << "there are no keys";
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST(AdminPort, NeedsTheScopeAdminWhereThereAreKeys) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/admin-keys-", ::getpid());
  std::ofstream(path) << "user " << router::Sha256Hex("user") << "\nboss "
                      << router::Sha256Hex("boss") << " scopes=infer,admin\n";
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                                         "--admin=0", "--api-keys=" + path}));
  const std::string admin = cluster->admin_address();
  for (const char* operators : kOperatorPaths) {
    EXPECT_EQ(Ask(admin, GetOf(operators)).status, 401) << operators;
    const HttpAnswer user = Ask(admin, GetOf(operators, Key("user")));
    EXPECT_EQ(user.status, 403) << operators;
    EXPECT_THAT(user.body, HasSubstr("lacks the scope admin"));
    EXPECT_EQ(Ask(admin, GetOf(operators, Key("boss"))).status, 200) << operators;
  }
  EXPECT_EQ(Ask(admin, PostOf("/drain", "{}", Key("user"))).status, 403);
  EXPECT_EQ(Ask(admin, GetOf("/health")).status, 200) << "probes need no key";
  EXPECT_EQ(StatusOver(cluster->address(), ""), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(StatusOver(cluster->address(), "user"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(StatusOver(cluster->address(), "boss"), grpc::StatusCode::OK);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  std::remove(path.c_str());
}

TEST(AdminPort, ADrainLetsRunningRequestsEnd) {
  ASSERT_OK_AND_ASSIGN(auto cluster, TestCluster::Start({"--engine=hash", "--kv-blocks=256",
                                                         "--admin=0", "--hash-step-time=10ms"}));
  const std::string clients = cluster->http_address(), admin = cluster->admin_address();
  constexpr int kTokens = 100;
  HttpSocket running(clients);
  ASSERT_TRUE(running.Send(PostOf("/v1/completions", json({{"prompt", "p"},
                                                           {"max_tokens", kTokens},
                                                           {"ignore_eos", true},
                                                           {"stream", true},
                                                           {"return_token_ids", true}})
                                                         .dump())));
  while (!absl::StrContains(running.buffer(), "finish_reason")) ASSERT_TRUE(running.ReadSome());
  const HttpAnswer drain = Ask(admin, PostOf("/drain", "{}"));
  EXPECT_EQ(drain.status, 202);
  EXPECT_THAT(drain.body, HasSubstr("\"draining\":true"));
  EXPECT_EQ(Ask(clients, GetOf("/health")).status, 503);
  EXPECT_EQ(Ask(admin, GetOf("/health")).status, 503);
  const HttpAnswer refused = Ask(clients, PostOf("/v1/completions", R"({"prompt": "p"})"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("draining"));
  EXPECT_EQ(running.Read().Events().back(), "[DONE]");
  EXPECT_EQ(Ask(admin, PostOf("/drain", "{}")).status, 202) << "asking again changes nothing";
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
