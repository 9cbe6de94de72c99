// Goal: `tandem chaos` carries out its faults on real processes, finds every stream whole and
// nothing held afterwards, says so in words and JSON, leaves no process behind, also when it is
// interrupted, and refuses what it cannot do.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// Processes whose command line has `text` in it.
int ProcessesWith(const std::string& text) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline");
    const std::string line((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    count += absl::StrContains(line, text) ? 1 : 0;
  }
  return count;
}

// In a folder of its own, whose name the children's flags do not show: they are known by the port.
struct Folder {
  Folder() {
    char name[] = "/tmp/tandem-chaos-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

void ExpectAShortRunKeepsEveryPromise(const std::string& network) {
  const Folder folder;
  const ProgramRun run =
      RunProgram({"tandem", "chaos", "--minutes=0.1", "--period=800ms", "--requests=24",
                  "--clients=4", "--prefill=1", "--decode=2", "--prompt-tokens=200",
                  "--faults=kill,pause,partition,slow-link,loss,disk,drain", "--network=" + network,
                  "--json=" + folder.path + "/report.json", "--logs=" + folder.path});
  if (run.exit_code != 0 && absl::StrContains(run.output, "no network namespaces ("))
    GTEST_SKIP() << run.output.substr(run.output.find("no network namespaces"));
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::ifstream file(folder.path + "/report.json");
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["violations"], 0);
  EXPECT_EQ(report["namespaces"], network == "namespaces");
  EXPECT_GT(report["whole"], 0);
  int faults = 0;
  for (const auto& group : report["faults"]) faults += group["times"].get<int>();
  EXPECT_GE(faults, 4);
  EXPECT_THAT(run.output, HasSubstr("RECOVERED"));
  EXPECT_TRUE(std::filesystem::exists(folder.path + "/decode-1.log"));
}

TEST(Chaos, OnLoopback) { ExpectAShortRunKeepsEveryPromise("loopback"); }
TEST(Chaos, InNetworkNamespaces) { ExpectAShortRunKeepsEveryPromise("namespaces"); }

// Sequences beyond any node's pool, split prompts among them, keep the same promises.
TEST(Chaos, WithNodesThatLend) {
  const Folder folder;
  const ProgramRun run = RunProgram(
      {"tandem", "chaos", "--minutes=0.15", "--period=1500ms", "--requests=16", "--clients=3",
       "--prefill=1", "--decode=4", "--kv-blocks=24", "--prompt-tokens=200", "--lend-fraction=0.8",
       "--beyond-pool=0.5", "--network=loopback", "--faults=kill,pause,drain",
       "--json=" + folder.path + "/report.json"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::ifstream file(folder.path + "/report.json");
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["violations"], 0);
  EXPECT_GT(report["lent"], 0) << run.output;
}

TEST(Chaos, AnInterruptedRunLeavesNoProcess) {
  const Folder folder;
  // Flags of the children carry the served model's name: this run's own.
  const std::string mark = "mark" + folder.path.substr(folder.path.size() - 6);
  auto program = RunningProgram::Start(
      {"tandem", "chaos", "--minutes=5", "--network=loopback", "--requests=8", "--model=" + mark});
  ASSERT_OK(program.status());
  ASSERT_FALSE((*program)->AwaitLine("recording the answers").empty()) << (*program)->log();
  EXPECT_GT(ProcessesWith(mark), 5);
  (*program)->Signal(SIGTERM);
  EXPECT_EQ((*program)->AwaitEnd().value_or("goes on"), "exit code 1") << (*program)->log();
  EXPECT_THAT((*program)->log(), HasSubstr("interrupted"));
  EXPECT_EQ(ProcessesWith(mark), 0);
}

TEST(Chaos, RefusesFaultsItDoesNotKnow) {
  const ProgramRun run = RunProgram({"tandem", "chaos", "--faults=kill,meteor"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("\"meteor\""));
  const ProgramRun none = RunProgram({"tandem", "chaos", "--network=loopback", "--faults=loss"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.output, HasSubstr("allows none of them"));
}

}  // namespace
}  // namespace tandem::testing
