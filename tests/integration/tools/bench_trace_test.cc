// Goal: `tandem bench trace` sends a trace to real processes, counts what they did, finds the
// beginnings that prompts share, and reports the same fields as `tandem sim trace`.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

std::string FileOf(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// Three conversations of four turns; each turn repeats the one before and adds a block.
std::string WriteTrace(const TestFolder& folder) {
  const std::string path = folder / "trace.jsonl";
  std::ofstream file(path);
  for (int turn = 0; turn < 4; ++turn) {
    for (int conversation = 0; conversation < 3; ++conversation) {
      std::string names;
      for (int block = 0; block <= turn; ++block)
        absl::StrAppend(&names, block == 0 ? "" : ", ", 10 * conversation + block);
      file << absl::StrCat("{\"timestamp\": ", 300 * (3 * turn + conversation),
                           ", \"input_length\": ", 512 * (turn + 1), ", \"output_length\": 4",
                           ", \"hash_ids\": [", names, "]}\n");
    }
  }
  return path;
}

std::set<std::string> KeysOf(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

TEST(BenchTrace, CountsWhatTheClusterDidInTheSimulatorsForm) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start({"--engine=hash", "--prefill=1",
                                                               "--decode=1", "--kv-blocks=4096"}));
  const TestFolder files("bench-trace");
  const std::string trace = WriteTrace(files), folder = files.path();
  const ProgramRun run =
      RunProgram({"tandem", "bench", "trace", trace, "--target=grpc://" + cluster->address(),
                  "--shrink=8", "--speed=10", "--slo-ttft=60s", "--json=" + folder + "/real.json",
                  "--html=" + folder + "/real.html"});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto real = nlohmann::json::parse(FileOf(folder + "/real.json"), nullptr, false);
  EXPECT_EQ(real["requests"], 12);
  EXPECT_EQ(real["answered"], 12);
  EXPECT_EQ(real["output_tokens"], 48);
  EXPECT_EQ(real["ttft_ms"]["count"], 12);
  EXPECT_EQ(real["itl_ms"]["count"], 36);
  EXPECT_EQ(real["hits"]["prompt_tokens"], 3 * (1 + 2 + 3 + 4) * 64);
  EXPECT_EQ(real["nodes"].size(), 2u);
  EXPECT_EQ(real["good_share"], 1.0);
  // Requests are 30 ms apart and answered in a few; a busy machine may take longer for some.
  EXPECT_GT(real["ceiling"], 0.5);
  EXPECT_GT(real["hit"], 0.0);
  EXPECT_THAT(FileOf(folder + "/real.html"), HasSubstr("A trace on a cluster"));

  const ProgramRun simulated =
      RunProgram({"tandem", "sim", "trace", trace, "--json=" + folder + "/simulated.json"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.output;
  const auto virtually = nlohmann::json::parse(FileOf(folder + "/simulated.json"), nullptr, false);
  EXPECT_EQ(KeysOf(real), KeysOf(virtually));
  EXPECT_EQ(real["ceiling"], virtually["ceiling"]);
}

// The goal of "late" is out of reach and the one of "soon" is not, so that all of one tier's
// requests are refused or late, and all of the other's in time.
TEST(BenchTrace, RequestsNameTiersAndAreJudgedByTheirGoals) {
  const std::string tiers = "--service-tiers=soon ttft=10m gap=10m,late ttft=1ns";
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=4096", tiers}));
  const TestFolder folder("bench-trace");
  const std::string path = folder / "tiers.json";
  const ProgramRun run = RunProgram(
      {"tandem", "bench", "trace", WriteTrace(folder), "--target=grpc://" + cluster->address(),
       "--shrink=8", "--speed=10", tiers, "--service-mix=soon:1,late:1", "--json=" + path});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("in time 100.0 %"));
  const auto report = nlohmann::json::parse(FileOf(path), nullptr, false);
  ASSERT_TRUE(report.is_object()) << report;
  const auto json = report.value("service_tiers", nlohmann::json::object());
  ASSERT_TRUE(json.contains("soon") && json.contains("late")) << report;
  EXPECT_EQ(json["soon"]["requests"].get<int>() + json["late"]["requests"].get<int>(), 12);
  EXPECT_GE(json["late"]["requests"], 4) << "half of them, or nearly";
  EXPECT_EQ(json["soon"]["in_time"], json["soon"]["requests"]);
  EXPECT_EQ(json["late"]["answered"], json["late"]["requests"]);
  EXPECT_EQ(json["late"]["in_time"], 0);
  EXPECT_EQ(json["late"]["itl_ms"]["count"], 3 * json["late"]["requests"].get<int>());
  // The router counted the same.
  const std::string metrics = Ask(cluster->http_address(), GetOf("/metrics")).body;
  const auto counted = [&](const char* tier, const char* outcome) {
    return absl::StrCat("service_tier=\"", tier, "\",outcome=\"", outcome, "\"} ",
                        json[tier]["requests"].get<int>(), "\n");
  };
  EXPECT_THAT(metrics, HasSubstr(counted("soon", "in_time")));
  EXPECT_THAT(metrics, HasSubstr(counted("late", "late")));
}

TEST(BenchTrace, WhatCannotBeSentIsTold) {
  const auto fails = [](std::vector<std::string> flags, int exit_code, const char* text) {
    flags.insert(flags.begin(), {"tandem", "bench", "trace"});
    const ProgramRun run = RunProgram(flags);
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    EXPECT_THAT(run.output, HasSubstr(text));
  };
  const TestFolder folder("bench-trace");
  const std::string trace = WriteTrace(folder);
  fails({}, 2, "expected FILE");
  fails({trace, "--target=http://127.0.0.1:1"}, 2, "grpc://HOST:PORT");
  fails({trace, "--target=grpc://127.0.0.1:1"}, 1, "127.0.0.1:1");
  fails({trace, "--service-mix=flex:1"}, 2, "\"flex\" is no service tier");
  fails({trace, "--service-tiers=flex ttft=x"}, 2, "\"ttft=x\"");
  fails({trace, "--shrink=3"}, 1, "power of two");
  fails({"/nowhere/trace.jsonl"}, 1, "/nowhere/trace.jsonl");
}

}  // namespace
}  // namespace tandem::testing
