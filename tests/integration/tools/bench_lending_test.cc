// Goal: `tandem bench lending` measures each of its parts on real processes; wrong use is named
// before anything starts.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

TEST(BenchLending, MeasuresContextSlowdownMixesAndSkew) {
  // 640 tokens a node, of which it lends two units of 256.
  const ProgramRun run =
      RunProgram({"tandem", "bench", "lending", "--engine=hash", "--decode=2", "--kv-blocks=40",
                  "--block-tokens=16", "--context-pools=1.5", "--slowdown-tokens=32", "--rounds=2",
                  "--mix-requests=10", "--long-shares=0,0.2", "--skew-requests=8",
                  "--hash-step-time=5ms", "--json=-", "--no-progress"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"settings")));
  EXPECT_EQ(report["pool_tokens"], 640);
  ASSERT_EQ(report["contexts"].size(), 2u);
  EXPECT_LE(report["contexts"][0]["tokens"].get<int>(), 640);
  EXPECT_GT(report["contexts"][1]["tokens"].get<int>(), 640) << "two nodes hold more than one";
  EXPECT_LE(report["contexts"][1]["tokens"].get<int>(), 640 + 512 * 3 / 4);
  EXPECT_EQ(report["slowdown"]["context_tokens"], 960);
  // The first token has no gap before it.
  EXPECT_EQ(report["slowdown"]["local_gap_ms"]["count"].get<int>(), 2 * 31);
  EXPECT_EQ(report["slowdown"]["lent_gap_ms"]["count"].get<int>(), 2 * 31);
  ASSERT_EQ(report["mixes"].size(), 2u);
  for (const auto& mix : report["mixes"]) {
    EXPECT_EQ(mix["alone"]["answered"], 20) << mix;
    EXPECT_EQ(mix["lending"]["answered"], 20) << mix;
  }
  ASSERT_EQ(report["skews"].size(), 1u);
  const auto& skew = report["skews"][0];
  EXPECT_EQ(skew["long_ones"], 1);
  EXPECT_EQ(skew["short_ones"], 8);
  EXPECT_EQ(skew["alone_failed"].get<int>() + skew["lending_failed"].get<int>(), 0) << skew;
  EXPECT_GT(skew["alone_tokens_per_second"].get<double>(), 0);
  EXPECT_GT(skew["lending_tokens_per_second"].get<double>(), 0);
}

TEST(BenchLending, OneLargerCreditorHoldsAWholePool) {
  // Two pools of 640 tokens: the creditor keeps what the debtor cannot.
  const ProgramRun run = RunProgram(
      {"tandem", "bench", "lending", "--engine=hash", "--parts=slowdown", "--kv-blocks=40",
       "--block-tokens=16", "--creditor-blocks=80", "--context-pools=2", "--slowdown-tokens=16",
       "--rounds=1", "--json=-", "--no-progress"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"settings")));
  EXPECT_EQ(report["slowdown"]["context_tokens"], 1280);
  EXPECT_EQ(report["slowdown"]["lent_gap_ms"]["count"].get<int>(), 15);
  EXPECT_EQ(report["settings"]["creditor"], "of slowdown: one, with a pool of 1280 tokens");
}

TEST(BenchLending, WrongUseIsSaid) {
  const auto refused = [](const std::string& flag, const std::string& word,
                          const std::string& parts = "contexts,slowdown,mix") {
    const ProgramRun run = RunProgram({"tandem", "bench", "lending", "--parts=" + parts, flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.output, HasSubstr(word)) << flag;
  };
  refused("--decode=2", "expected contexts, slowdown, mix or skew", "throughput");
  refused("--decode=1", "no other node to borrow from");
  refused("--kv-blocks=2", "skew needs pools of at least 100", "skew");
  refused("--kv-blocks=0", "small enough to be outgrown");
  refused("--context-pools=9", "expected at most 2.12");
  refused("--creditor-blocks=8", "expected at most 1");
  refused("--long-shares=0.1,2", "expected numbers from 0 to 1");
  refused("--slowdown-tokens=4000", "of one pool");
}

}  // namespace
}  // namespace tandem::testing
