// Goal: the ways of serving differ in what they are named after and in nothing else, and the report
// holds each one's figures: as a table of 80 columns, as JSON, as a page that is well-formed XML.
#include "cli/bench_modes/modes_report.h"

#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"
#include "cli/bench_modes/serving_mode.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(ServingMode, EachHasAsManyNodes) {
  UpConfig up;
  up.prefill = 2;
  up.decode = 3;
  for (const ServingMode mode : kServingModes) {
    SCOPED_TRACE(NameOf(mode));
    const UpConfig config = ConfigureFor(mode, up);
    EXPECT_EQ(config.prefill + config.decode, 5);
    EXPECT_EQ(config.prefill > 0, mode == ServingMode::kDisaggregated);
    EXPECT_EQ(config.node.batching == "static", mode == ServingMode::kBatched);
    EXPECT_TRUE(config.http.empty());
  }
}

ModesReport Report() {
  ModesReport report{.settings = {{"model", "a <b> & \"c\""}}, .modes = {}};
  for (const ServingMode mode : kServingModes) {
    ModeResult result{
        .name = NameOf(mode), .prefill = 0, .decode = 2, .summary = {}, .records = {}};
    for (int i = 0; i < 10; ++i) {
      RequestRecord record;
      record.index = i;
      record.first_token = absl::Milliseconds(100 + i);
      record.ended = absl::Milliseconds(900);
      record.gaps_ms = {5, 7};
      record.output_tokens = 3;
      if (i == 9) record.error = "broken";
      result.records.push_back(record);
    }
    result.summary = Summarize(result.records, absl::Seconds(2), {.ttft_ms = 104});
    report.modes.push_back(std::move(result));
  }
  return report;
}

TEST(ModesReport, TheTableHasEachWaysFigures) {
  const std::string table = FormatModesTable(Report());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n')))
    EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(table, HasSubstr("batched            2    104.0    108.0     5.0     7.0      13.5"
                               "     2.50      1\n"));
  EXPECT_THAT(table, HasSubstr("disaggregated"));
}

TEST(ModesReport, JsonHoldsTheSame) {
  const auto json = nlohmann::json::parse(FormatModesJson(Report()));
  ASSERT_EQ(json["modes"].size(), 3u);
  const auto& mode = json["modes"][1];
  EXPECT_EQ(mode["mode"], "interleaved");
  EXPECT_EQ(mode["decode_nodes"], 2);
  EXPECT_EQ(mode["ttft_ms"]["p50"], 104);
  EXPECT_EQ(mode["itl_ms"]["p99"], 7);
  EXPECT_EQ(mode["goodput"], 2.5);
  EXPECT_EQ(mode["failed"], 1);
}

TEST(ModesReport, ThePageIsWellFormed) {
  const std::string html = FormatModesHtml(Report());
  std::istringstream page(html.substr(html.find('\n') + 1));  // after <!DOCTYPE html>
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(page, tree));
  EXPECT_THAT(html, HasSubstr("a &lt;b&gt; &amp;"));
  EXPECT_THAT(html, HasSubstr("<svg"));
  EXPECT_THAT(html, ::testing::Not(HasSubstr("src=")));
}

}  // namespace
}  // namespace tandem::cli
