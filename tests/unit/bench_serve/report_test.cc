// Goal: figures are what their definitions say on any data (percentiles against a sorted
// reference, goodput by hand), and reports hold them: JSON parses, CSV has a line a request, the
// HTML page is well-formed, loads nothing and survives hostile texts.
#include "cli/bench_serve/report.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/report/chart.h"
#include "cli/report/statistics.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RequestRecord Answered(int64_t index, double sent_ms, double first_ms, double ended_ms,
                       std::vector<float> gaps) {
  RequestRecord record;
  record.index = index;
  record.intended = absl::Milliseconds(sent_ms - 1);
  record.sent = absl::Milliseconds(sent_ms);
  record.first_token = absl::Milliseconds(first_ms);
  record.ended = absl::Milliseconds(ended_ms);
  record.output_tokens = static_cast<int32_t>(gaps.size()) + 1;
  record.prompt_tokens = 10;
  record.gaps_ms = std::move(gaps);
  return record;
}

RequestRecord Failed(int64_t index, const std::string& error, const std::string& message) {
  RequestRecord record;
  record.index = index;
  record.ended = absl::Milliseconds(5);
  record.error = error;
  record.message = message;
  return record;
}

TEST(Percentile, HasExactlyItsShareAtOrBelow) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> values(1 + random() % 300);
    for (double& value : values) value = static_cast<double>(random() % 50);
    std::sort(values.begin(), values.end());
    for (const double percent : {1.0, 50.0, 90.0, 99.0, 100.0}) {
      const double found = Percentile(values, percent);
      const auto share = [&](auto keep) {
        return 100.0 * static_cast<double>(std::count_if(values.begin(), values.end(), keep)) /
               static_cast<double>(values.size());
      };
      // The smallest value that enough of the others do not exceed.
      EXPECT_GE(share([&](double v) { return v <= found; }), percent - 1e-9);
      EXPECT_LT(share([&](double v) { return v < found; }), percent);
    }
  }
}

TEST(Statistics, CountFromTheIntendedArrival) {
  const std::vector<RequestRecord> records = {Answered(0, 11, 20, 50, {5, 25})};
  const LoadSummary summary = Summarize(records, absl::Seconds(2), {});
  EXPECT_DOUBLE_EQ(summary.ttft.p50, 10);
  EXPECT_DOUBLE_EQ(summary.e2e.p50, 40);
  EXPECT_DOUBLE_EQ(summary.tpot.p50, 15);
  EXPECT_EQ(summary.itl.count, 2);
  EXPECT_DOUBLE_EQ(summary.itl.p50, 5);
  EXPECT_DOUBLE_EQ(summary.itl.max, 25);
  EXPECT_DOUBLE_EQ(summary.lateness.max, 1);
  EXPECT_DOUBLE_EQ(summary.requests_per_second, 0.5);
  EXPECT_DOUBLE_EQ(summary.output_tokens_per_second, 1.5);
}

TEST(Statistics, GoodputCountsWhatKeepsEveryObjective) {
  std::vector<RequestRecord> records = {
      Answered(0, 1, 10, 50, {5, 5}), Answered(1, 1, 30, 50, {5, 5}),    // late first token
      Answered(2, 1, 10, 50, {5, 20}), Answered(3, 1, 10, 200, {5, 5}),  // a gap; a late end
      Failed(4, "HTTP 503", "no node")};
  RequestRecord cancelled = Failed(5, "", "");
  cancelled.cancelled = true;
  records.push_back(cancelled);
  const Objectives objectives = {.ttft_ms = 20, .itl_ms = 10, .e2e_ms = 100};
  const LoadSummary summary = Summarize(records, absl::Seconds(1), objectives);
  EXPECT_EQ(summary.requests, 6);
  EXPECT_EQ(summary.answered, 4);
  EXPECT_EQ(summary.cancelled, 1);
  EXPECT_EQ(summary.good, 1);
  EXPECT_DOUBLE_EQ(summary.goodput, 1);
  EXPECT_DOUBLE_EQ(summary.good_share, 0.2);
  EXPECT_EQ(summary.errors.at("HTTP 503"), 1);
  EXPECT_EQ(Summarize(records, absl::Seconds(1), {}).good, 4);
}

TEST(Statistics, ATierCountsTheRequestsThatNameIt) {
  std::vector<RequestRecord> records = {
      Answered(0, 1, 10, 50, {5, 15}), Answered(1, 1, 30, 50, {25}), Answered(2, 1, 99, 120, {1}),
      Failed(3, "HTTP 429", "late"),   Failed(4, "HTTP 500", "?"),   Failed(5, "HTTP 503", "gone")};
  for (const size_t i : {0, 1, 3, 4}) records[i].service_tier = "flex";
  records[5].service_tier = "chat";
  const LoadSummary summary = Summarize(records, absl::Seconds(1), {});
  ASSERT_EQ(summary.tiers.size(), 2u) << "request 2 names none";
  EXPECT_EQ(summary.tiers[0].name, "chat");
  EXPECT_EQ(summary.tiers[0].refused, 1);
  const TierSummary& flex = summary.tiers[1];
  EXPECT_EQ(flex.name, "flex");
  EXPECT_EQ(flex.requests, 4);
  EXPECT_EQ(flex.answered, 2);
  EXPECT_EQ(flex.refused, 1) << "an error of the server is no refusal";
  EXPECT_DOUBLE_EQ(flex.ttft.p50, 10);
  EXPECT_DOUBLE_EQ(flex.ttft.p99, 30);
  EXPECT_DOUBLE_EQ(flex.itl.p50, 15);
  EXPECT_DOUBLE_EQ(flex.itl.p99, 25);
}

TEST(Statistics, ARefusalComesBeforeTheAnswer) {
  for (const char* kind : {"HTTP 429", "HTTP 503", "gRPC RESOURCE_EXHAUSTED", "gRPC UNAVAILABLE"}) {
    RequestRecord record = Failed(0, kind, "");
    EXPECT_TRUE(record.refused()) << kind;
    record.first_token = absl::Milliseconds(1);
    EXPECT_FALSE(record.refused()) << kind;
  }
  for (const char* kind : {"", "HTTP 400", "gRPC INTERNAL", "timeout"})
    EXPECT_FALSE(Failed(0, kind, "").refused()) << kind;
}

TEST(Statistics, OfNothingAreZero) {
  const LoadSummary summary = Summarize({}, absl::ZeroDuration(), {.ttft_ms = 1});
  EXPECT_EQ(summary.requests, 0);
  EXPECT_EQ(summary.requests_per_second, 0);
  EXPECT_EQ(summary.good_share, 0);
}

constexpr char kHostile[] = "</td><script>alert(\"x\")</script> & 'quoted' \xff\x01";

LoadReport HostileReport() {
  LoadReport report;
  report.settings = {{"model", kHostile}, {"target", "http://x"}};
  report.open_loop = true;
  for (int i = 0; i < 3000; ++i) {
    report.records.push_back(Answered(i, i + 1, i + 10 + i % 7, i + 50, {5, 2}));
  }
  report.records.push_back(Failed(3000, "HTTP 429", kHostile));
  report.records.back().service_tier = "flex";
  report.summary = Summarize(report.records, absl::Seconds(4), {.ttft_ms = 12});
  return report;
}

TEST(Report, HtmlIsWellFormedAndLoadsNothing) {
  for (const LoadReport& report : {HostileReport(), LoadReport()}) {
    const std::string html = FormatLoadHtml(report);
    std::istringstream text(html);
    boost::property_tree::ptree tree;
    ASSERT_NO_THROW(boost::property_tree::read_xml(text, tree));
    int charts = 0;
    for (const auto& [name, child] : tree.get_child("html.body")) charts += name == "svg" ? 1 : 0;
    EXPECT_EQ(charts, 6);
    EXPECT_THAT(html, Not(HasSubstr("<script")));
    EXPECT_THAT(html, Not(HasSubstr("src=")));
    EXPECT_THAT(html, Not(HasSubstr("href=")));
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_LT(html.size(), 2u << 20);
  }
}

TEST(Report, JsonHoldsTheFigures) {
  const LoadReport report = HostileReport();
  const auto json = nlohmann::json::parse(FormatLoadJson(report), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["summary"]["answered"], 3000);
  EXPECT_EQ(json["summary"]["failed"], 1);
  EXPECT_EQ(json["summary"]["ttft_ms"]["p99"], report.summary.ttft.p99);
  EXPECT_EQ(json["summary"]["errors"]["HTTP 429"]["count"], 1);
  EXPECT_EQ(json["summary"]["goodput"]["good"], report.summary.good);
  EXPECT_EQ(json["open_loop"], true);
  EXPECT_EQ(json["summary"]["service_tiers"]["flex"]["refused"], 1);
  EXPECT_EQ(json["summary"]["service_tiers"]["flex"]["itl_ms"]["count"], 0);
  const auto none = nlohmann::json::parse(FormatLoadJson(LoadReport()), nullptr, false);
  EXPECT_FALSE(none["summary"].contains("service_tiers"));
}

TEST(Report, ATiersRequestsAddUpAndWhatWasNotMeasuredIsNone) {
  LoadReport report;
  report.records = {Failed(0, "HTTP 429", "late"), Failed(1, "HTTP 500", "?"),
                    Failed(2, "timeout", "?"), Failed(3, "", "")};
  report.records[3].cancelled = true;
  for (RequestRecord& record : report.records) record.service_tier = "flex";
  const auto row = [&report] {
    report.summary = Summarize(report.records, absl::Seconds(1), {});
    const std::string table = FormatLoadTable(report);
    const size_t at = table.find("\nflex") + 1;
    const std::vector<std::string> words =
        absl::StrSplit(table.substr(at, table.find('\n', at) - at), ' ', absl::SkipEmpty());
    return absl::StrJoin(words, " ");
  };
  EXPECT_EQ(row(), "flex 4 0 1 2 1 none none none none");
  EXPECT_THAT(FormatLoadHtml(report), HasSubstr("<td>1</td><td>none</td><td>none</td>"));
  // One answer of one token: it has a first token, and no gap.
  report.records.push_back(Answered(4, 11, 20, 50, {}));
  report.records.back().service_tier = "flex";
  EXPECT_EQ(row(), "flex 5 1 1 2 1 10.00 10.00 none none");
  const auto json = nlohmann::json::parse(FormatLoadJson(report), nullptr, false);
  EXPECT_EQ(json["summary"]["service_tiers"]["flex"]["failed"], 2);
  EXPECT_EQ(json["summary"]["service_tiers"]["flex"]["cancelled"], 1);
}

TEST(Report, CsvHasALineForEachRequest) {
  const LoadReport report = HostileReport();
  const std::string csv = FormatLoadCsv(report.records);
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), report.records.size() + 1);
  EXPECT_EQ(lines[1], "0,0.000000,0.001000,10.000,50.000,20.000,5.000,10,0,3,ok,\"\",\"\"");
  EXPECT_THAT(lines.back(), HasSubstr("\"HTTP 429\",\"</td><script>alert(\"\"x\"\")"));
}

TEST(Report, AServersTextSteersNoTerminalAndAddsNoColumn) {
  LoadReport report;
  report.settings = {{"model", "m\x1b[2J"}};
  report.records = {Failed(0, "HTTP \x1b[31m",
                           "a\x1b]0;title\x07\nb \xc2\x9b"
                           "2J caf\xc3\xa9")};
  report.records[0].service_tier = "flex,\"\x1b[0m\"";
  report.summary = Summarize(report.records, absl::Seconds(1), {});
  const std::string table = FormatLoadTable(report);
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(table, Not(HasSubstr("\x07")));
  EXPECT_THAT(table, Not(HasSubstr("\xc2\x9b")));
  EXPECT_THAT(table, HasSubstr("m\\x1b[2J\n"));
  EXPECT_THAT(table, HasSubstr("1 x HTTP \\x1b[31m: a\\x1b]0;title\\x07\\nb \\xc2\\x9b"
                               "2J caf\xc3\xa9\n"));
  EXPECT_THAT(table, HasSubstr("\nflex,\"\\x1b[0m\""));
  EXPECT_THAT(FormatLoadCsv(report.records), HasSubstr(",\"flex,\"\"\x1b[0m\"\"\"\n"));
}

TEST(Report, XmlHasNoCharacterThatIsNone) {
  EXPECT_EQ(XmlEscape("a\xef\xbf\xbf"
                      "b\xef\xbf\xbe"
                      "c\xef\xbf\xbd"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd"
            "c\xef\xbf\xbd");
}

TEST(Report, TheTableSaysWhatMatters) {
  const std::string table = FormatLoadTable(HostileReport());
  EXPECT_THAT(table, HasSubstr("3000 answered, 1 failed, 0 cancelled"));
  EXPECT_THAT(table, HasSubstr("no coordinated omission"));
  EXPECT_THAT(table, HasSubstr("goodput"));
  EXPECT_THAT(table, HasSubstr("1 x HTTP 429"));
  EXPECT_THAT(
      table,
      HasSubstr(
          "\nflex                          1        0        1        0         0       none "));
  EXPECT_THAT(FormatLoadHtml(HostileReport()),
              HasSubstr("<tr><td>flex</td><td>1</td><td>0</td><td>1</td>"));
}

TEST(Chart, StepsAreRound) {
  EXPECT_DOUBLE_EQ(AxisStep(100, 5), 20);
  EXPECT_DOUBLE_EQ(AxisStep(7, 5), 2);
  EXPECT_DOUBLE_EQ(AxisStep(0.9, 8), 0.2);
  EXPECT_DOUBLE_EQ(AxisStep(41, 5), 10);
}

}  // namespace
}  // namespace tandem::cli
