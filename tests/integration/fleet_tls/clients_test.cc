// Goal: with --tls-client-ca the ports for clients serve whom an authority has signed for, over
// gRPC and HTTP, but no node and no router; the command line shows its certificate, and takes no
// node for a router; `tandem certs` makes what all of them need.
#include <sys/stat.h>

#include "tests/integration/fleet_tls/tls_fleet.h"
#include "tests/testing/https_client.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ClientCertificates : public TlsFleet {
 protected:
  void SetUp() override {
    TlsFleet::SetUp();
    std::vector<std::string> flags = RouterFlags();
    flags.insert(flags.end(), {"--http=127.0.0.1:0", "--admin=127.0.0.1:0"});
    flags.push_back("--tls-cert=" + In("router") + "/tls.crt");
    flags.push_back("--tls-key=" + In("router") + "/tls.key");
    flags.push_back("--tls-client-ca=" + In("router") + "/ca.crt");
    router_ = &StartRouter(flags);
    http_ = router_->AwaitField("router started", "http");
    admin_ = router_->AwaitField("router started", "admin");
    RunningProgram& node = StartNode("decode", "decode-0", In("decode"));
    ASSERT_FALSE(node.AwaitLine("joined router").empty()) << node.log();
  }
  ProgramRun Status(const std::string& role, const std::string& router = "") {
    std::vector<std::string> words = {"tandem", "status", "--router",
                                      router.empty() ? grpc_ : router,
                                      "--tls-ca=" + In("cli") + "/ca.crt"};
    if (!role.empty()) {
      words.push_back("--tls-cert=" + In(role) + "/tls.crt");
      words.push_back("--tls-key=" + In(role) + "/tls.key");
    }
    return RunProgram(words);
  }
  HttpAnswer Get(const std::string& address, const std::string& path, const std::string& role) {
    HttpsSocket socket(address, In("cli") + "/ca.crt", role.empty() ? "" : In(role));
    socket.Send(GetOf(path));
    return socket.Read();
  }

  RunningProgram* router_ = nullptr;
  std::string http_, admin_;
};

TEST_F(ClientCertificates, OverGrpc) {
  const ProgramRun right = Status("cli");
  EXPECT_EQ(right.exit_code, 0) << right.output;
  EXPECT_THAT(right.output, HasSubstr("decode-0"));
  authority_.Write(folder_ / "nameless", {});
  EXPECT_EQ(Status("nameless").exit_code, 0) << "the authority vouches for it";
  for (const std::string role : {"decode", "prefill", "router"}) {
    const ProgramRun wrong = Status(role);
    EXPECT_NE(wrong.exit_code, 0);
    EXPECT_THAT(wrong.output,
                AllOf(HasSubstr("expected the role cli"), HasSubstr("found the role " + role)));
  }
  EXPECT_THAT(Status("").output, AllOf(HasSubstr("router at "), Not(HasSubstr("decode-0"))));
  const TestAuthority stranger("a stranger");
  stranger.Write(folder_ / "stranger", {.role = "cli"});
  EXPECT_THAT(Status("stranger").output,
              AllOf(HasSubstr("router at "), Not(HasSubstr("decode-0"))));
}

TEST_F(ClientCertificates, OverHttp) {
  for (const auto& [address, path] :
       {std::pair(http_, "/v1/models"), std::pair(admin_, "/metrics")}) {
    EXPECT_EQ(Get(address, path, "cli").status, 200);
    EXPECT_EQ(Get(address, path, "").status, 0);
    EXPECT_EQ(Get(address, path, "decode").status, 0);
  }
  EXPECT_THAT(router_->AwaitLine("refused an HTTP client's certificate"),
              AllOf(HasSubstr("expected the role cli"), HasSubstr("found the role decode")));
  const auto load = [&](const std::string& role) {
    return RunProgram({"tandem", "bench", "serve", "--target=https://" + http_, "--requests=6",
                       "--prompt-tokens=16", "--output-tokens=4",
                       "--tls-ca=" + In("cli") + "/ca.crt", "--tls-cert=" + In(role) + "/tls.crt",
                       "--tls-key=" + In(role) + "/tls.key"});
  };
  const ProgramRun right = load("cli");
  EXPECT_THAT(right.output, HasSubstr("6 answered, 0 failed")) << right.output;
  EXPECT_NE(load("decode").exit_code, 0);
}

// A node's certificate signed by the right authority, for the right host.
TEST_F(ClientCertificates, NoNodeIsTakenForARouter) {
  const std::string files = In("decode");
  ASSERT_OK_AND_ASSIGN(const auto server,
                       rpc::Server::Start("127.0.0.1:0", {}, rpc::kClientLimits,
                                          {{files + "/tls.crt", files + "/tls.key", ""}, {}}));
  const ProgramRun run = Status("", server->address());
  EXPECT_NE(run.exit_code, 0);
  EXPECT_THAT(run.output,
              AllOf(HasSubstr("expected the role router"), HasSubstr("found the role decode")));
}

TEST(Certs, MakeWhatAClusterNeeds) {
  const TestFolder root("certs");
  const std::string folder = (root / "certs").string();
  const auto certs = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"tandem", "certs", "--folder=" + folder};
    words.insert(words.end(), more.begin(), more.end());
    return RunProgram(words);
  };
  EXPECT_NE(certs({"list"}).exit_code, 0);
  const ProgramRun made = certs({"make", "--fleet=corp.example/a", "--days=3"});
  ASSERT_EQ(made.exit_code, 0) << made.output;
  for (const char* text : {"spiffe://corp.example/a/tandem/router", "127.0.0.1", "::1",
                           "spiffe://corp.example/a/tandem/cli", "corp.example/a authority"})
    EXPECT_THAT(made.output, HasSubstr(text));
  EXPECT_EQ(certs({"list"}).output, made.output);
  for (const char* key : {"/ca.key", "/router/tls.key", "/decode/tls.key"}) {
    struct stat found = {};
    EXPECT_EQ(::stat((folder + key).c_str(), &found), 0) << key;
    EXPECT_EQ(found.st_mode & 0777, 0600u) << key;
  }
  for (const char* kind : {"--single-process=false", "--single-process"}) {
    ASSERT_OK_AND_ASSIGN(const auto cluster,
                         TestCluster::Start({"--engine=hash", "--fleet-tls=" + folder, kind,
                                             "--tls-cert=" + folder + "/router/tls.crt",
                                             "--tls-key=" + folder + "/router/tls.key",
                                             "--tls-client-ca=" + folder + "/ca.crt"}));
    // Renewed under the same authority while it runs.
    EXPECT_EQ(certs({"make", "--fleet=corp.example/a"}).exit_code, 0);
    const ProgramRun asked =
        RunProgram({"tandem", "generate", "--router", cluster->address(),
                    "--tls-ca=" + folder + "/ca.crt", "--tls-cert=" + folder + "/cli/tls.crt",
                    "--tls-key=" + folder + "/cli/tls.key", "--max-tokens=4", "hello"});
    EXPECT_EQ(asked.exit_code, 0) << asked.output;
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  EXPECT_THAT(certs({"make", "--names=a,b c"}).output, HasSubstr("the name 'b c'"));
  EXPECT_THAT(
      RunProgram({"tandem", "up", "--engine=hash", "--tls-client-ca=" + folder + "/ca.crt"}).output,
      HasSubstr("--fleet-tls"));
}

}  // namespace
}  // namespace tandem::testing
