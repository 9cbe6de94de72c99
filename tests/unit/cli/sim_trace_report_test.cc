// Goal: the results of `tandem sim trace` hold the figures of a run in each form, the page is
// well-formed and loads nothing, a cost model is read or refused by the name of its term, and the
// noise that one report holds is read again.
#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/sim_trace/model_cost.h"
#include "cli/sim_trace/trace_report.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TraceReport Example() {
  TraceReport report;
  report.settings = {{"trace", "a <b> & \"c\" \x01\xff.jsonl"}};
  report.objectives = {.ttft = absl::Seconds(2), .itl = absl::Milliseconds(50)};
  report.trace = {.requests = 4, .prompt_tokens = 1000, .ceiling_tokens = 100};
  sim::TraceResult& result = report.result;
  result.requests = 4;
  result.answered = 3;
  result.refused = 1;
  result.first_error = "RESOURCE_EXHAUSTED: <full>";
  result.good = 2;
  result.virtual_s = 8;
  result.events = 5'000'000;
  report.wall_s = 2;
  result.sources = {.prompt = 1000,
                    .ceiling = 400,
                    .prefill_cache = 250,
                    .decode_cache = 50,
                    .host_memory = 60,
                    .disk = 20,
                    .fetched = 100};
  for (const int ms : {100, 200, 300}) result.ttft.Add(absl::Milliseconds(ms));
  report.policies = {{.policy = "LRU", .hit_tokens = 200}, {.policy = "FIFO", .hit_tokens = 150}};
  report.policy_blocks = 77;
  result.nodes = {{.name = "prefill-0", .prefill = true, .busy_s = 6},
                  {.name = "prefill-1", .prefill = true, .busy_s = 2},
                  {.name = "decode-0", .busy_s = 8}};
  sim::TierResult tier = {.name = "flex", .requests = 4, .answered = 3, .refused = 1, .in_time = 2};
  tier.ttft.Add(absl::Milliseconds(250));
  tier.itl.Add(absl::Milliseconds(40));
  result.tiers = {tier};
  return report;
}

TEST(SimTraceReport, JsonHoldsTheFigures) {
  const auto json = nlohmann::json::parse(FormatTraceJson(Example()));
  EXPECT_DOUBLE_EQ(json["hit"], 0.3);
  EXPECT_DOUBLE_EQ(json["ceiling"], 0.1) << "of the whole trace";
  EXPECT_DOUBLE_EQ(json["hit_of_ceiling"], 0.75) << "of answered requests";
  EXPECT_EQ(json["hits"]["ceiling"], 400);
  EXPECT_EQ(json["interrupted"], false);
  EXPECT_EQ(json["nodes_error"], "");
  EXPECT_EQ(json["hits"]["host_memory"], 60);
  EXPECT_EQ(json["hits"]["disk"], 20);
  EXPECT_EQ(json["hits"]["fetched"], 100);
  EXPECT_EQ(json["hits"]["blocks"], 120) << "the rest";
  EXPECT_DOUBLE_EQ(json["max_over_mean"], 1.5) << "of prefill nodes: 6 by the mean of 6 and 2";
  EXPECT_DOUBLE_EQ(json["goodput"], 0.25);
  EXPECT_DOUBLE_EQ(json["good_share"], 0.5);
  EXPECT_NEAR(json["ttft_ms"]["p50"], 200, 2);
  EXPECT_DOUBLE_EQ(json["ttft_ms"]["max"], 300);
  EXPECT_EQ(json["itl_ms"]["count"], 0);
  EXPECT_EQ(json["refused"], 1);
  EXPECT_EQ(json["one_cache"]["blocks"], 77);
  EXPECT_DOUBLE_EQ(json["one_cache"]["hit"]["FIFO"], 0.15);
  EXPECT_EQ(json["nodes"].size(), 3);
  const nlohmann::json& tier = json["service_tiers"]["flex"];
  EXPECT_EQ(tier["requests"], 4);
  EXPECT_EQ(tier["refused"], 1);
  EXPECT_DOUBLE_EQ(tier["in_time_share"], 0.5);
  EXPECT_NEAR(tier["ttft_ms"]["p99"], 250, 2);
  EXPECT_NEAR(tier["itl_ms"]["p99"], 40, 1);
}

TEST(SimTraceReport, TableAndPageHoldTheFigures) {
  const std::string table = FormatTraceTable(Example());
  for (const char* text : {"30.00 % of prompt tokens, 75.0 % of the ceiling of 40.00 % (of all "
                           "requests 10.00 %); 25.00 % in prefill nodes",
                           "blocks 12.00 %, host memory 6.00 %, disk 2.00 %, other nodes 10.00 %; "
                           "of the ceiling 30.0, "
                           "15.0, 5.0, 25.0 %",
                           "1.500", "0.250 requests/s, 50.0 % of all", "2.50 million events/s",
                           "of 77 blocks: LRU 20.00 %, FIFO 15.00 %", "1 refused", "prefill-1",
                           "4 requests: 3 answered, 1 refused; in time 50.0 %", "ITL p50 40.0"})
    EXPECT_THAT(table, HasSubstr(text));
  const std::string page = FormatTraceHtml(Example());
  std::istringstream text(page);
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(text, tree));
  EXPECT_THAT(page, HasSubstr("75.0 % of the ceiling"));
  EXPECT_THAT(page, HasSubstr("RESOURCE_EXHAUSTED: &lt;full&gt;"));
  for (const char* loaded : {"src=", "href=", "url(", "<script", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(loaded)));
}

TEST(SimTraceReport, TheTableSteersNoTerminal) {
  TraceReport report = Example();
  report.result.first_error = "UNAVAILABLE: \x1b[2J\n";
  report.result.nodes[0].name = "\x1b[31mred";
  report.interrupted = true;
  report.nodes_error = "UNAVAILABLE: \x07";
  const std::string table = FormatTraceTable(report);
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, HasSubstr("UNAVAILABLE: \\x1b[2J\\n\n"));
  EXPECT_THAT(table, HasSubstr("\\x1b[31mred"));
  EXPECT_THAT(table, HasSubstr("not known: UNAVAILABLE: \\x07\n"));
  EXPECT_THAT(table, HasSubstr("this is the result so far"));
  EXPECT_EQ(nlohmann::json::parse(FormatTraceJson(report))["interrupted"], true);
}

TEST(SimTraceReport, AResultOfNothingIsShown) {
  EXPECT_TRUE(nlohmann::json::accept(FormatTraceJson(TraceReport())));
  EXPECT_THAT(FormatTraceTable(TraceReport()), HasSubstr("0 in 0.0 s"));
}

TEST(ModelCost, TermsAreReadByName) {
  const auto profile = ParseModelCost("step=9000,prompt-row=112,generated-attended=0.02");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->step_us, 9000);
  EXPECT_EQ(profile->prompt_row_us, 112);
  EXPECT_EQ(profile->generated_attended_us, 0.02);
  EXPECT_EQ(profile->sampled_row_us, 0);
  EXPECT_TRUE(ParseModelCost(kDefaultModelCost).ok());
  const std::pair<const char*, const char*> bad[] = {
      {"speed=3", "'speed' is no term of the cost model, expected step, prompt-row"},
      {"step", "step is ''"},
      {"step=-1", "step is '-1', expected microseconds"},
      {"step=nan", "step is 'nan'"},
      {"step=1e7", "step is '1e7'"},
      {"", "steps would take no time"},
      {"prompt-row=1", "steps would take no time"}};
  for (const auto& [text, why] : bad) {
    const auto refused = ParseModelCost(text);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(why)) << text;
  }
}

NamedFile NoiseFile(const ::tandem::testing::TestFolder& folder, const std::string& text) {
  const std::string path = folder / "step_noise.json";
  std::ofstream(path) << text;
  return {"step-noise", path};
}

TEST(NoiseFile, AReportsNoiseIsReadAgain) {
  TraceReport report = Example();
  EXPECT_EQ(nlohmann::json::parse(FormatTraceJson(report))["gap_noise"].size(), 0);
  report.result.gap_noise = {{0, 0.5}, {50, 1}, {100, 1.5}};
  const ::tandem::testing::TestFolder folder("step-noise");
  const auto noise = ReadStepNoise(NoiseFile(folder, FormatTraceJson(report)));
  ASSERT_TRUE(noise.ok()) << noise.status();
  EXPECT_FALSE(noise->none());
}

TEST(NoiseFile, OtherFilesAreRefused) {
  const ::tandem::testing::TestFolder folder("step-noise");
  const std::pair<std::string, const char*> bad[] = {
      {"{", "body"},
      {"{}", "gap_noise: expected pairs"},
      {FormatTraceJson(Example()), "as `tandem bench trace --json` writes them"},
      {R"({"gap_noise": [[0, 1], 5]})", "gap_noise[1]: expected [percent, factor]"},
      {R"({"gap_noise": [[0, 1], [100, "2"]]})", "gap_noise[1]"},
      {R"({"gap_noise": [[0, 1], [100, -2]]})", "quantile of 100 % has factor -2"}};
  for (const auto& [text, why] : bad) {
    const auto refused = ReadStepNoise(NoiseFile(folder, text));
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(why)) << text;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--step-noise=")) << text;
  }
  EXPECT_EQ(ReadStepNoise({"step-noise", "/nowhere"}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tandem::cli
