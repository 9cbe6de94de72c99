// Goal: the timing of a request that real processes served reaches its client when it asks (gRPC
// and HTTP), and `tandem trace` afterwards; gaps number the output tokens less one; the steps fit
// into the whole; an unknown name gets a clear error.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ProgramRun Why(const TestCluster& cluster, const std::string& flag, const std::string& id) {
  return RunProgram({"tandem", "why", "--router=" + cluster.address(), flag, id});
}

class Trace : public ::testing::Test {
 protected:
  void SetUp() override {
    // Rows take time, which shows; the decode node computes no prompt, however slow the link is.
    ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start({"--engine=hash", "--hash-row-time=200us", "--prefill=1", "--decode=1",
                            "--kv-blocks=2048", "--local-prefill-tokens=0"}));
  }
  v1::GenerateRequest Request(const std::string& id, int tokens) const {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text(std::string(300, 'x'));
    request.mutable_stop()->set_max_tokens(tokens);
    return request;
  }
  ProgramRun Ask(const std::string& id, const std::string& flag = "--svg=") const {
    return RunProgram({"tandem", "trace", "--router=" + cluster_->address(), flag, id});
  }

  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(Trace, ClientsThatAskGetGapsOverGrpc) {
  v1::GenerateRequest request = Request("with", 9);
  EXPECT_EQ(cluster_->Generate(request).finished.timing().gap_ms_size(), 0);
  request.set_request_id("without");
  request.set_return_gaps(true);
  const Answer answer = cluster_->Generate(request);
  ASSERT_OK(answer.status);
  const v1::Timing& timing = answer.finished.timing();
  ASSERT_EQ(timing.gap_ms_size(), 8);
  const double gaps = std::accumulate(timing.gap_ms().begin(), timing.gap_ms().end(), 0.0);
  EXPECT_LE(timing.first_token_ms() + gaps, timing.total_ms() + 0.01);
  EXPECT_NEAR(timing.queue_ms() + timing.reserve_ms() + timing.prefill_ms(),
              timing.first_token_ms(), 0.01);
}

TEST_F(Trace, ClientsThatAskGetGapsOverHttp) {
  const HttpAnswer answer = testing::Ask(
      cluster_->http_address(), PostOf("/v1/completions",
                                       R"({"prompt": "abcdef", "max_tokens": 6, "ignore_eos": true,
                              "timing": true})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const nlohmann::json json = answer.Json();
  EXPECT_EQ(json["timing"][0]["gap_ms"].size(), 5u);
  const ProgramRun run = Ask(json["id"].get<std::string>());
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("6 prompt tokens"));
}

TEST_F(Trace, TheCommandShowsAndDrawsAFinishedRequest) {
  ASSERT_OK(cluster_->Generate(Request("my-request", 12)).status);
  const TestFolder folder("trace");
  const std::string svg = folder / "trace.svg";
  const ProgramRun run = Ask("my-request", "--svg=" + svg);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("request my-request"), HasSubstr("prefill-0 to decode-0"),
                                HasSubstr("transfer"), HasSubstr("11 between tokens")));
  std::ifstream file(svg);
  const std::string picture((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  EXPECT_THAT(picture, AllOf(HasSubstr("my-request"), HasSubstr("</svg>")));
}

TEST_F(Trace, UnknownNamesAreRefused) {
  const ProgramRun run = Ask("no-such-request");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output,
              HasSubstr("tandem trace: request_id: \"no-such-request\" is not among the "
                        "last 1024 finished requests"));
  EXPECT_EQ(RunProgram({"tandem", "trace"}).exit_code, 2);
}

// `tandem why`: the nodes that were weighed, and which were chosen.
TEST_F(Trace, WhyShowsThePredictedTimes) {
  ASSERT_OK(cluster_->Generate(Request("chosen", 3)).status);
  const ProgramRun text = Why(*cluster_, "--json=false", "chosen");
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_THAT(text.output, AllOf(HasSubstr("by cost"), HasSubstr("predicted milliseconds"),
                                 HasSubstr("> decode-"), HasSubstr("> prefill-"),
                                 HasSubstr("FIRST TOKEN"), HasSubstr("COST")));
  EXPECT_THAT(text.output, AllOf(HasSubstr("decode-0 decodes and lacks 300 of the prompt's 300 "
                                           "tokens; prefill-0 computes what it lacks."),
                                 HasSubstr("First token predicted after ")));
  const ProgramRun json = Why(*cluster_, "--json", "chosen");
  const nlohmann::json decision = nlohmann::json::parse(json.output)["placements"][0];
  EXPECT_EQ(decision["policy"], "cost");
  const auto& scores = decision["prefill_nodes"][0]["scores"];
  const auto milliseconds = [&](const std::string& name) {
    for (const auto& score : scores)
      if (score["name"] == name) return score.value("score", 0.0);
    ADD_FAILURE() << name << " is missing: " << decision;
    return 0.0;
  };
  EXPECT_GE(milliseconds("first token"), milliseconds("compute"));
  EXPECT_GT(milliseconds("compute"), 0);
  const ProgramRun unknown = Why(*cluster_, "--json=false", "unknown");
  EXPECT_NE(unknown.exit_code, 0);
  EXPECT_THAT(unknown.output, HasSubstr("\"unknown\" is not among the last"));
}

TEST(TraceOfAffinity, WhyShowsTheScores) {
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       TestCluster::Start({"--engine=hash", "--prefill=1", "--decode=1",
                                           "--kv-blocks=2048", "--placement=affinity"}));
  v1::GenerateRequest request;
  request.set_request_id("chosen");
  request.set_text(std::string(300, 'x'));
  request.mutable_stop()->set_max_tokens(3);
  ASSERT_OK(cluster->Generate(request).status);
  const ProgramRun text = Why(*cluster, "--json=false", "chosen");
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_THAT(text.output, AllOf(HasSubstr("sequence 0, placed at "), HasSubstr("> decode-"),
                                 HasSubstr("> prefill-"), HasSubstr("PREFIX*1")));
  EXPECT_THAT(text.output, HasSubstr(" computes what neither holds."));
  const ProgramRun json = Why(*cluster, "--json", "chosen");
  const nlohmann::json decision = nlohmann::json::parse(json.output)["placements"][0];
  EXPECT_EQ(decision["policy"], "affinity");
  EXPECT_EQ(decision["decode_nodes"].size(), 1u);
}

}  // namespace
}  // namespace tandem::testing
