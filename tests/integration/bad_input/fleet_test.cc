// Goal: processes that cannot take their place say which address, node or model is in the way and
// end with exit code 1; a fleet they tried to join goes on; a router without nodes says what is
// missing, soon.
#include <signal.h>

#include "tests/integration/bad_input/bad_cluster.h"
#include "tests/testing/models.h"
#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A router on the hash engine with the addresses it chose.
class LoneRouter : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        router_, RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                        "--fleet=127.0.0.1:0"}));
    grpc_ = router_->AwaitField("router started", "grpc");
    fleet_ = router_->AwaitField("router started", "fleet");
    ASSERT_FALSE(grpc_.empty()) << router_->log();
    client_ = cli::Client::Create(grpc_);
  }
  void TearDown() override {
    router_->Signal(SIGTERM);
    EXPECT_EQ(router_->AwaitEnd(absl::Seconds(40)).value_or("goes on"), "exit code 0")
        << router_->log();
  }

  std::unique_ptr<RunningProgram> StartNode(const std::string& program, const std::string& id,
                                            std::vector<std::string> flags = {"--engine=hash"}) {
    std::vector<std::string> words = {program, "--id=" + id, "--routers=" + fleet_,
                                      "--kv-blocks=64"};
    words.insert(words.end(), flags.begin(), flags.end());
    auto node = RunningProgram::Start(words);
    EXPECT_OK(node.status());
    return node.ok() ? *std::move(node) : nullptr;
  }
  // The node is refused, says why, and ends.
  void ExpectRefused(RunningProgram& node, const std::string& id,
                     const std::vector<std::string>& named) {
    EXPECT_EQ(node.AwaitEnd().value_or("goes on"), "exit code 1") << node.log();
    const std::string last = node.AwaitLine("tandem-decode-node: ", absl::ZeroDuration());
    for (const std::string& text : named) EXPECT_THAT(last, HasSubstr(text)) << node.log();
    EXPECT_THAT(last, HasSubstr("node " + id));
    EXPECT_THAT(router_->AwaitLine("refused a node node_id=" + id), HasSubstr(named[0]));
  }

  std::unique_ptr<RunningProgram> router_;
  std::string grpc_, fleet_;
  std::unique_ptr<cli::Client> client_;
};

TEST_F(LoneRouter, PortsInUseAreNamed) {
  const auto expect_taken = [](const std::vector<std::string>& words, const std::string& address) {
    const ProgramRun run = RunProgram(words);
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(words[0] + ": "), HasSubstr(address),
                                  HasSubstr("cannot listen"), HasSubstr("in use")));
  };
  const std::string any = "127.0.0.1:0";
  expect_taken({"tandem-router", "--engine=hash", "--grpc=" + grpc_, "--fleet=" + any}, grpc_);
  expect_taken({"tandem-router", "--engine=hash", "--grpc=" + any, "--fleet=" + fleet_}, fleet_);
  for (const char* node : {"tandem-prefill-node", "tandem-decode-node"})
    expect_taken({node, "--engine=hash", "--kv-blocks=8", "--health=" + grpc_}, grpc_);
  // A host that is not this machine's (a documentation address, RFC 5737).
  expect_taken({"tandem-router", "--engine=hash", "--grpc=203.0.113.7:0"}, "203.0.113.7:0");
  const ProgramRun no_port = RunProgram({"tandem-router", "--engine=hash", "--grpc=localhost"});
  EXPECT_EQ(no_port.exit_code, 2) << no_port.output;
  EXPECT_THAT(no_port.output, AllOf(HasSubstr("'localhost'"), HasSubstr("host:port")));

  const ProgramRun up = RunProgram({"tandem", "up", "--engine=hash", "--grpc=" + grpc_});
  EXPECT_EQ(up.exit_code, 1) << up.output;
  EXPECT_THAT(up.output, AllOf(HasSubstr("tandem up: "), HasSubstr("router-0"),
                               HasSubstr("cannot listen on " + grpc_)));
  const ProgramRun single =
      RunProgram({"tandem", "up", "--engine=hash", "--single-process", "--grpc=" + grpc_});
  EXPECT_EQ(single.exit_code, 1) << single.output;
  EXPECT_THAT(single.output, HasSubstr("cannot listen on " + grpc_));
}

TEST_F(LoneRouter, WithoutNodesItSaysWhatIsMissing) {
  const auto expect_unavailable = [&](const char* when) {
    const absl::Time begin = absl::Now();
    const absl::Status status = Collect(*client_, TokensRequest(100, 5)).status;
    const absl::Duration took = absl::Now() - begin;
    std::printf("%s: answered after %s\n", when, absl::FormatDuration(took).c_str());
    EXPECT_THAT(status, StatusIs(StatusCode::kUnavailable,
                                 AllOf(HasSubstr("no decode node"), HasSubstr("joined"))));
    EXPECT_LT(took, absl::Seconds(10));
  };
  expect_unavailable("no node");
  const auto prefill = StartNode("tandem-prefill-node", "p");
  ASSERT_FALSE(prefill->AwaitLine("joined router").empty()) << prefill->log();
  expect_unavailable("a prefill node only");
  const auto decode = StartNode("tandem-decode-node", "d");
  ASSERT_FALSE(decode->AwaitLine("joined router").empty()) << decode->log();
  ExpectWell(*client_);
}

TEST_F(LoneRouter, NodesThatDifferAreRefusedAndTheFleetGoesOn) {
  const auto prefill = StartNode("tandem-prefill-node", "p");
  const auto decode = StartNode("tandem-decode-node", "d");
  ASSERT_FALSE(prefill->AwaitLine("joined router").empty()) << prefill->log();
  ASSERT_FALSE(decode->AwaitLine("joined router").empty()) << decode->log();
  ExpectWell(*client_);

  const auto blocks = StartNode("tandem-decode-node", "d2", {"--engine=hash", "--block-tokens=64"});
  ExpectRefused(*blocks, "d2", {"numerics id", "b64", "the fleet has", "b32"});
  const auto model = StartNode("tandem-decode-node", "d3",
                               {"--model=" + GoldenPath("tiny/llama/llama.gguf"), "--threads=1"});
  ExpectRefused(*model, "d3", {"has model ", "this router serves hash"});

  EXPECT_TRUE(prefill->running() && decode->running());
  ASSERT_OK_AND_ASSIGN(const auto status, client_->GetStatus(absl::Seconds(5)));
  EXPECT_EQ(status.nodes_size(), 2) << status.DebugString();
  ExpectWell(*client_);
}

TEST(ModelCluster, NodesThatDifferAreRefused) {
  TANDEM_FIND_MODEL_OR_SKIP(model, kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const auto router,
                       RunningProgram::Start({"tandem-router", "--model=" + model,
                                              "--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0"}));
  const std::string fleet = router->AwaitField("router started", "fleet");
  ASSERT_FALSE(fleet.empty()) << router->log();
  const auto start = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"tandem-decode-node", "--routers=" + fleet, "--kv-blocks=16"});
    auto node = RunningProgram::Start(flags);
    EXPECT_OK(node.status());
    return *std::move(node);
  };
  const auto hash = start({"--id=other-engine", "--engine=hash"});
  EXPECT_EQ(hash->AwaitEnd().value_or("goes on"), "exit code 1") << hash->log();
  EXPECT_THAT(hash->AwaitLine("tandem-decode-node: "),
              AllOf(HasSubstr("other-engine"), HasSubstr("model hash"),
                    HasSubstr("this router serves"), HasSubstr("Smollm2")));

  const auto first = start({"--id=first", "--threads=1", "--model=" + model, "--kv-type=bf16"});
  ASSERT_FALSE(first->AwaitLine("joined router").empty()) << first->log();
  const auto second = start({"--id=second", "--threads=1", "--model=" + model, "--kv-type=f32"});
  EXPECT_EQ(second->AwaitEnd().value_or("goes on"), "exit code 1") << second->log();
  EXPECT_THAT(second->AwaitLine("tandem-decode-node: "),
              AllOf(HasSubstr("node second"), HasSubstr("numerics id"), HasSubstr("f32"),
                    HasSubstr("the fleet has"), HasSubstr("bf16")));
  EXPECT_TRUE(first->running());
}

// A port that other machines reach, and no secret and no TLS: any of them could join and say what
// answers are.
TEST(FleetPort, BeyondThisMachineNeedsASecretOrAWord) {
  for (const char* fleet : {"0.0.0.0:0", "[::]:0"}) {
    const ProgramRun run = RunProgram(
        {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", absl::StrCat("--fleet=", fleet)});
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(fleet), HasSubstr("--fleet-secret-file"),
                                  HasSubstr("--fleet-tls"), HasSubstr("--open-fleet")));
  }
  for (const char* told : {"--open-fleet", "--fleet=127.0.0.1:0", "--fleet=[::1]:0"}) {
    auto router = RunningProgram::Start(
        {"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0", "--fleet=0.0.0.0:0", told});
    ASSERT_OK(router.status());
    EXPECT_FALSE((*router)->AwaitLine("router started").empty()) << told;
  }
}

}  // namespace
}  // namespace tandem::testing
