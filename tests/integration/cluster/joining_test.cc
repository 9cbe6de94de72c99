// Goal: nodes started apart from `tandem up` join its fleet if they hold the secret that it was
// given, with its routers' addresses as it prints them, no other node joins a fleet whose secret
// was drawn for the run, and a node that leaves in order causes no warning.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr char kJoined[] = "joined router";
constexpr char kRefused[] = "router refused this node";

class Joining : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& file : files_) ::unlink(file.c_str());
  }

  // A file with that secret.
  std::string SecretFile(const std::string& secret) {
    files_.push_back(
        absl::StrCat(::testing::TempDir(), "/tandem-joining-", ::getpid(), "-", files_.size()));
    std::ofstream(files_.back()) << secret << "\n";
    return files_.back();
  }

  static absl::StatusOr<std::unique_ptr<TestCluster>> Up(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--engine=hash", "--prefill=1", "--decode=1"});
    return TestCluster::Start(flags);
  }

  static std::unique_ptr<RunningProgram> Node(const std::string& router,
                                              const std::string& secret_file) {
    auto node =
        RunningProgram::Start({"tandem-decode-node", "--engine=hash", "--id=apart",
                               "--routers=" + router, "--fleet-secret-file=" + secret_file});
    EXPECT_OK(node.status());
    return *std::move(node);
  }

  std::vector<std::string> files_;
};

std::string After(const std::string& marker, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  const size_t begin = lines[0].find(marker) + marker.size();
  return lines[0].substr(begin, lines[0].find_first_of(",;", begin) - begin);
}

TEST_F(Joining, WhoHoldsTheSecretOfTheFile) {
  const std::string file = SecretFile("of this fleet");
  for (const std::string kind : {"--single-process=false", "--single-process"}) {
    SCOPED_TRACE(kind);
    ASSERT_OK_AND_ASSIGN(const auto cluster, Up({kind, "--fleet-secret-file=" + file}));
    const std::string marker = "nodes join on ";
    const std::string router = After(marker, cluster->AwaitLinesWith(marker));
    ASSERT_FALSE(router.empty());
    const auto member = Node(router, file), stranger = Node(router, SecretFile("another"));
    EXPECT_FALSE(member->AwaitLine(kJoined).empty()) << member->log();
    EXPECT_FALSE(stranger->AwaitLine(kRefused).empty()) << stranger->log();
    EXPECT_EQ(stranger->log().find(kJoined), std::string::npos);
  }
}

TEST_F(Joining, LeavingInOrderCausesNoWarning) {
  const std::string file = SecretFile("of this fleet");
  ASSERT_OK_AND_ASSIGN(const auto cluster, Up({"--fleet-secret-file=" + file}));
  const std::string marker = "nodes join on ";
  const auto member = Node(After(marker, cluster->AwaitLinesWith(marker)), file);
  ASSERT_FALSE(member->AwaitLine(kJoined).empty()) << member->log();
  member->Signal(SIGTERM);
  EXPECT_EQ(member->AwaitEnd(), "exit code 0");
  EXPECT_EQ(member->log().find("WARN"), std::string::npos) << member->log();
  EXPECT_EQ(cluster->Stop(), "exit code 0");
  EXPECT_FALSE(cluster->LinesWith("node is draining node_id=apart").empty());
  EXPECT_FALSE(cluster->LinesWith("node left node_id=apart").empty());
  EXPECT_TRUE(cluster->LinesWith("node lost node_id=apart").empty());
}

TEST_F(Joining, WhoFindsNoRouterSaysWhere) {
  const auto node = Node("127.0.0.1:1", SecretFile("of this fleet"));
  const std::string line = node->AwaitLine("cannot reach router");
  EXPECT_NE(line.find("address=127.0.0.1:1"), std::string::npos) << node->log();
  EXPECT_NE(line.find("refused"), std::string::npos) << line;
}

TEST_F(Joining, NoNodeJoinsWhereTheSecretWasDrawn) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, Up({}));
  EXPECT_TRUE(cluster->LinesWith("nodes join on ").empty());
  // As the log of its own nodes tells it.
  const std::string router = After("address=", cluster->AwaitLinesWith(kJoined));
  ASSERT_FALSE(router.empty());
  const auto stranger = Node(router, SecretFile("guessed"));
  EXPECT_FALSE(stranger->AwaitLine(kRefused).empty()) << stranger->log();
}

}  // namespace
}  // namespace tandem::testing
