// Goal: `tandem bench serve` counts what a real cluster really did, over HTTP and over gRPC, in
// the closed and the open loop; failures are counted by kind; a signal still gives a result; a
// server that is not there is named, and so is a result that cannot be written, before the run.
#include <gmock/gmock.h>
#include <signal.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

class BenchServe : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                                       "--kv-blocks=4096"}));
  }
  std::string http() const { return "--target=http://" + cluster_->http_address(); }
  std::string grpc() const { return "--target=grpc://" + cluster_->address(); }
  int64_t Finished() const {
    const auto status = cluster_->client().GetStatus(absl::Seconds(5));
    return status.ok() ? status->router().requests_finished() : -1;
  }

  std::unique_ptr<TestCluster> cluster_;
};

std::string FileOf(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

nlohmann::json RunForJson(std::vector<std::string> flags) {
  const TestFolder folder("bench-serve-json");
  const std::string path = folder / "report.json";
  flags.insert(flags.begin(), {"tandem", "bench", "serve", "--json=" + path});
  const ProgramRun run = RunProgram(flags);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  return nlohmann::json::parse(FileOf(path), nullptr, false)["summary"];
}

TEST_F(BenchServe, CountsWhatTheClusterDid) {
  for (const std::string& target : {http(), grpc()}) {
    const int64_t before = Finished();
    const nlohmann::json summary =
        RunForJson({target, "--requests=60", "--warmup=4", "--concurrency=6", "--prompt-tokens=40",
                    "--output-tokens=10", "--slo-e2e=60s"});
    EXPECT_EQ(summary["answered"], 60) << target;
    EXPECT_EQ(summary["failed"], 0) << target;
    EXPECT_EQ(summary["prompt_tokens"], 60 * 40) << target;
    EXPECT_EQ(summary["output_tokens"], 60 * 10) << target;
    EXPECT_EQ(summary["ttft_ms"]["count"], 60) << target;
    EXPECT_EQ(summary["e2e_ms"]["count"], 60) << target;
    EXPECT_EQ(summary["goodput"]["good"], 60) << target;
    EXPECT_LE(summary["ttft_ms"]["p50"], summary["e2e_ms"]["p50"]) << target;
    EXPECT_EQ(Finished() - before, 64) << target;
  }
}

TEST_F(BenchServe, AResultThatCannotBeWrittenIsToldBeforeTheRun) {
  const int64_t before = Finished();
  const TestFolder folder("bench-serve-kept");
  const std::string kept = folder / "kept";
  std::ofstream(kept) << "kept";
  for (const std::string flag : {"--json=", "--csv=", "--html="}) {
    const ProgramRun run =
        RunProgram({"tandem", "bench", "serve", http(), "--requests=4", "--json=" + kept,
                    "--html=" + kept + "2", flag + "/nowhere/result"});
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_THAT(run.output, HasSubstr(flag.substr(0, flag.size() - 1) + " /nowhere/result"));
  }
  EXPECT_EQ(Finished(), before);
  EXPECT_EQ(FileOf(kept), "kept");
  EXPECT_FALSE(std::ifstream(kept + "2").good());
}

TEST_F(BenchServe, ChatsOfSeveralTurnsFindTheirBeginningsCached) {
  const int64_t before = Finished();
  const nlohmann::json summary =
      RunForJson({http(), "--endpoint=chat", "--turns=2", "--requests=128", "--concurrency=8",
                  "--prompt-tokens=60", "--output-tokens=6"});
  EXPECT_EQ(summary["answered"], 128);
  EXPECT_EQ(summary["failed"], 0);
  EXPECT_EQ(summary["output_tokens"], 128 * 6);
  EXPECT_EQ(summary["ttft_ms"]["count"], 128);
  // Each second turn repeats a first one that was answered before it.
  EXPECT_GT(summary["cached_tokens"], 0);
  EXPECT_EQ(Finished() - before, 128);
}

TEST_F(BenchServe, OpenLoopsSharedPrefixesAndFilesOfResults) {
  const TestFolder folder("bench-serve-files");
  const std::string csv = folder / "load.csv", html = folder / "load.html";
  const nlohmann::json summary =
      RunForJson({http(), "--requests=80", "--rate=400", "--arrivals=bursty", "--prompt-tokens=256",
                  "--shared-prefix-tokens=192", "--prefixes=2", "--output-tokens=2..6",
                  "--prompt-form=text", "--csv=" + csv, "--html=" + html});
  EXPECT_EQ(summary["answered"], 80);
  EXPECT_GT(summary["cached_tokens"], 0);
  const std::vector<std::string> lines = absl::StrSplit(FileOf(csv), '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 81u);
  EXPECT_THAT(FileOf(html), HasSubstr("</html>"));
}

// The router has "gold" and not "flex": it refuses neither, and both the router and the load count
// each request where it went.
TEST(BenchServeTiers, RequestsNameTiersByTheirShares) {
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=4096", "--service-tiers=gold ttft=10m"}));
  int64_t gold = 0, flex = 0;
  for (const std::string& target :
       {"http://" + cluster->http_address(), "grpc://" + cluster->address()}) {
    const nlohmann::json summary =
        RunForJson({"--target=" + target, "--requests=40", "--service-mix=gold:3,flex:1",
                    "--prompt-tokens=20", "--output-tokens=4", "--concurrency=4"});
    EXPECT_EQ(summary["answered"], 40) << target;
    const nlohmann::json tiers = summary.value("service_tiers", nlohmann::json::object());
    ASSERT_TRUE(tiers.contains("gold") && tiers.contains("default")) << summary;
    EXPECT_NEAR(tiers["gold"]["requests"].get<double>(), 30, 2) << target;
    EXPECT_EQ(tiers["gold"]["answered"], tiers["gold"]["requests"]) << target;
    EXPECT_GT(tiers["gold"]["itl_ms"]["count"], 0) << target;
    EXPECT_EQ(tiers["default"]["ttft_ms"]["count"], tiers["default"]["requests"]) << target;
    gold += tiers["gold"]["requests"].get<int64_t>();
    flex += tiers["default"]["requests"].get<int64_t>();
  }
  const std::string metrics = Ask(cluster->http_address(), GetOf("/metrics")).body;
  const auto in_time = [](const char* tier, int64_t count) {
    return absl::StrCat("service_tier=\"", tier, "\",outcome=\"in_time\"} ", count, "\n");
  };
  EXPECT_THAT(metrics, HasSubstr(in_time("gold", gold)));
  EXPECT_THAT(metrics, HasSubstr(in_time("default", flex)));
}

TEST_F(BenchServe, FailuresAreCountedByKind) {
  const ProgramRun run = RunProgram(
      {"tandem", "bench", "serve", http(), "--model=nobody", "--requests=5", "--warmup=0"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("5 x HTTP 404"));
  EXPECT_THAT(run.output, HasSubstr("no request was answered"));
  const ProgramRun warmup = RunProgram(
      {"tandem", "bench", "serve", grpc(), "--model=nobody", "--requests=5", "--warmup=2"});
  EXPECT_EQ(warmup.exit_code, 1);
  EXPECT_THAT(warmup.output, HasSubstr("no request of the warm-up was answered"));
}

TEST(BenchServeAlone, AServerThatIsNotThereIsNamed) {
  for (const char* target : {"http://127.0.0.1:1", "grpc://127.0.0.1:1"}) {
    const ProgramRun run =
        RunProgram({"tandem", "bench", "serve", absl::StrCat("--target=", target)});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.output, HasSubstr("tandem bench serve: "));
    EXPECT_THAT(run.output, HasSubstr("127.0.0.1:1"));
    EXPECT_THAT(run.output, HasSubstr("refused"));
  }
}

TEST(BenchServeAlone, WrongUseIsSaid) {
  const auto refused = [](const std::string& flag, const std::string& word) {
    const ProgramRun run = RunProgram({"tandem", "bench", "serve", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.output, HasSubstr(word)) << flag;
  };
  refused("--tls-ca=system", "--tls-ca needs an https:// or grpc:// --target");
  refused("--target=https://x", "no port");
  refused("--prompt-tokens=9..3", "--prompt-tokens");
  refused("--arrivals=odd", "arrivals");
  refused("--burstines=1", "--burstiness");
  refused("--service-mix=gold", "expected NAME:SHARE");
}

// A load of an hour, ended by a signal once requests were answered.
TEST(BenchServeAlone, ASignalGivesTheResultSoFar) {
  ASSERT_OK_AND_ASSIGN(auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=0", "--decode=1",
                                           "--hash-step-time=20ms", "--kv-blocks=4096"}));
  const TestFolder folder("bench-serve-interrupted");
  const std::string path = folder / "report.json";
  ASSERT_OK_AND_ASSIGN(
      const auto bench,
      cli::ChildProcess::Start("bench", absl::StrCat(TANDEM_BINARY_DIR, "/bin/tandem"),
                               {"bench", "serve", "--target=http://" + cluster->http_address(),
                                "--requests=0", "--duration=1h", "--concurrency=4",
                                "--prompt-tokens=8", "--output-tokens=5", "--json=" + path},
                               [](const std::string&) {}));
  const absl::Time give_up = absl::Now() + absl::Seconds(30);
  int64_t finished = 0;
  while (finished < 8 && absl::Now() < give_up) {
    ASSERT_OK_AND_ASSIGN(const auto status, cluster->client().GetStatus(absl::Seconds(5)));
    finished = status.router().requests_finished();
  }
  ASSERT_GE(finished, 8);
  bench->Signal(SIGINT);
  std::optional<std::string> ended;
  while (!ended.has_value() && absl::Now() < give_up) ended = bench->Ended();
  ASSERT_EQ(ended, "exit code 0");
  const auto json = nlohmann::json::parse(FileOf(path), nullptr, false);
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_GE(json["summary"]["answered"], 4);
  EXPECT_EQ(json["summary"]["failed"], 0);
}

}  // namespace
}  // namespace tandem::testing
