// Goal: `tandem bench modes` serves one load in three ways and reports each; wrong use is named
// before anything starts.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

TEST(BenchModes, ServesOneLoadInThreeWays) {
  const ProgramRun run =
      RunProgram({"tandem", "bench", "modes", "--engine=hash", "--kv-blocks=256", "--rate=40",
                  "--duration=1s", "--rounds=2", "--json=-", "--no-progress"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"settings")));
  ASSERT_EQ(report["modes"].size(), 3u);
  const char* names[] = {"batched", "interleaved", "disaggregated"};
  for (size_t i = 0; i < 3; ++i) {
    const auto& mode = report["modes"][i];
    EXPECT_EQ(mode["mode"], names[i]);
    EXPECT_GT(mode["answered"].get<int>(), 20) << mode;
    EXPECT_EQ(mode["failed"], 0) << mode;
    EXPECT_GT(mode["ttft_ms"]["p50"].get<double>(), 0) << mode;
    // The same load each time.
    EXPECT_NEAR(mode["requests"].get<int>(), report["modes"][0]["requests"].get<int>(), 3);
  }
}

TEST(BenchModes, WrongUseIsSaid) {
  const auto refused = [](const std::string& flag, const std::string& word) {
    const ProgramRun run = RunProgram({"tandem", "bench", "modes", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.output, HasSubstr(word)) << flag;
  };
  refused("--prefill=0", "needs both kinds of nodes");
  refused("--prompt-tokens=many", "prompt-tokens");
  refused("--duration=0s", "at least 1s");
  refused("--batching=static", "unknown flag");
}

}  // namespace
}  // namespace tandem::testing
