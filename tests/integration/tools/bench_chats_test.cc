// Goal: `tandem bench chats` shows that later turns compute their new messages and no whole block
// of history, and shows it when a cluster does compute history; wrong use is named before anything
// starts.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

// On an engine whose rows take time: otherwise no fetch would be worth its messages.
nlohmann::json Chats(const std::vector<std::string>& flags) {
  std::vector<std::string> command = {"tandem",
                                      "bench",
                                      "chats",
                                      "--engine=hash",
                                      "--hash-row-time=1ms",
                                      "--kv-blocks=256",
                                      "--chats=2",
                                      "--turns=4",
                                      "--prompt-tokens=200",
                                      "--message-tokens=60..90",
                                      "--output-tokens=100..160",
                                      "--json=-"};
  command.insert(command.end(), flags.begin(), flags.end());
  const ProgramRun run = RunProgram(command);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  const size_t begin = run.output.find("{\"settings");
  return begin == std::string::npos ? nlohmann::json()
                                    : nlohmann::json::parse(run.output.substr(begin));
}

TEST(BenchChats, LaterTurnsComputeNoHistory) {
  const nlohmann::json report = Chats({});
  ASSERT_EQ(report["turns"].size(), 4u);
  EXPECT_EQ(report["recomputed"], 0) << report;
  for (size_t i = 0; i < 4; ++i) {
    const auto& turn = report["turns"][i];
    EXPECT_EQ(turn["turn"], i + 1);
    EXPECT_EQ(turn["history_tokens"].get<int>() > 0, i > 0) << turn;
    EXPECT_GT(turn["ttft_ms"]["p50"].get<double>(), 0) << turn;
    EXPECT_GT(turn["alone_ttft_ms"]["p50"].get<double>(), 0) << turn;
  }
}

TEST(BenchChats, HistoryThatIsComputedShows) {
  // By predicted times, the decode node would compute some later turns itself, with its history.
  const nlohmann::json report = Chats({"--fetch-tokens=0", "--placement=affinity"});
  EXPECT_GT(report["recomputed"].get<int>(), 3 * 2 * 64) << report;
}

TEST(BenchChats, WrongUseIsSaid) {
  const auto refused = [](const std::string& flag, const std::string& word) {
    const ProgramRun run = RunProgram({"tandem", "bench", "chats", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.output, HasSubstr(word)) << flag;
  };
  refused("--message-tokens=many", "message-tokens");
  refused("--turns=0", "turns");
  refused("--http=80", "unknown flag");
}

}  // namespace
}  // namespace tandem::testing
