// Goal: each token of an answer counts as one gap, whatever parts its client got; where a
// sequence's KV lies is read from a status without counting lent blocks twice, and
// the report of lending holds it: as a table of 80 columns, as JSON, and as a chart on a page that
// is well-formed XML.
#include "cli/bench_lending/lending_report.h"

#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/testing/answering_client.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A router that answers with two parts, and tells its gaps if it is asked to.
class TwoPartRouter final : public AnsweringClient {
 public:
  explicit TwoPartRouter(std::vector<float> gaps) : gaps_(std::move(gaps)) {}
  absl::Status Generate(const v1::GenerateRequest& request, const OnPart& on_part) override {
    v1::GenerateResponse text, end;
    text.mutable_delta()->set_text("text of all tokens");
    v1::Timing& timing = *end.mutable_finished()->mutable_timing();
    if (request.return_gaps()) timing.mutable_gap_ms()->Add(gaps_.begin(), gaps_.end());
    if (on_part(text)) on_part(end);
    return absl::OkStatus();
  }

 private:
  const std::vector<float> gaps_;
};

TEST(TokenGapsOf, EachTokenCountsAndTokensThatCameTogetherShareTheirGap) {
  const auto gaps_of = [](std::vector<float> told) {
    TwoPartRouter router(std::move(told));
    return *TokenGapsOf(router, {.max_tokens = 8}, [] { return false; });
  };
  EXPECT_THAT(gaps_of({8, 8, 8, 0, 9, 0, 0}), ElementsAre(8, 8, 4, 4, 3, 3, 3));
  // The first token came with the second one.
  EXPECT_THAT(gaps_of({0, 0, 6}), ElementsAre(0, 0, 6));
  EXPECT_THAT(gaps_of({}), ElementsAre());
}

TEST(TokenGapsOf, StopsWhenItIsAskedTo) {
  TwoPartRouter router({8});
  EXPECT_EQ(TokenGapsOf(router, {}, [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
}

TEST(KvPlaceOf, CountsABlockOnceThatADebtorLent) {
  v1::GetStatusResponse status;
  v1::NodeLoad& debtor = *status.add_nodes()->mutable_load();
  debtor.set_blocks_used(30);
  for (const int blocks : {16, 8}) debtor.add_debts()->set_blocks(blocks);
  v1::NodeLoad& creditor = *status.add_nodes()->mutable_load();
  creditor.set_blocks_used(16);
  creditor.set_blocks_lent(16);
  v1::NodeLoad& other = *status.add_nodes()->mutable_load();
  other.set_blocks_used(8);
  other.set_blocks_lent(8);
  const KvPlace place = KvPlaceOf(status, 32);
  EXPECT_EQ(place.here_tokens, 30 * 32);
  EXPECT_EQ(place.lent_tokens, 24 * 32);
  EXPECT_EQ(place.tokens(), 54 * 32);
}

LendingReport Report() {
  LendingReport report{.settings = {{"model", "a <b> & \"c\""}}, .pool_tokens = 1024};
  report.slowdown = LendingSlowdown{.context_tokens = 2048,
                                    .local = {.p50 = 8, .p90 = 10, .p99 = 16},
                                    .lent = {.p50 = 10, .p90 = 12, .p99 = 24},
                                    .places = {{.here_tokens = 512},
                                               {.here_tokens = 768, .lent_tokens = 256},
                                               {.here_tokens = 800, .lent_tokens = 1200}}};
  report.skews = {{.long_ones = 1, .short_ones = 336, .alone = 1054.9, .lending = 1315.6},
                  {.long_ones = 3,
                   .short_ones = 112,
                   .alone = 480,
                   .lending = 1200,
                   .alone_failed = 2,
                   .lending_failed = 1}};
  return report;
}

TEST(LendingReport, TheTableSaysHowMuchWasLentAtTheEnd) {
  const std::string table = FormatLendingTable(Report());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n')))
    EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(table, HasSubstr("KV with creditors, at the end           60% of 2000 tokens\n"));
  EXPECT_THAT(table,
              HasSubstr("         3        112            480.0      2           1200.0      1"
                        "    2.50\n"));
  LendingReport unseen = Report();
  unseen.slowdown->places.clear();
  EXPECT_THAT(FormatLendingTable(unseen), Not(HasSubstr("KV with creditors")));
}

TEST(LendingReport, JsonHoldsEachLook) {
  const auto json = nlohmann::json::parse(FormatLendingJson(Report()));
  EXPECT_EQ(json["slowdown"]["ratio_p50"], 1.25);
  const auto& places = json["slowdown"]["places"];
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2]["here_tokens"], 800);
  EXPECT_EQ(places[2]["lent_tokens"], 1200);
  ASSERT_EQ(json["skews"].size(), 2u);
  EXPECT_EQ(json["skews"][1]["ratio"], 2.5);
  EXPECT_EQ(json["skews"][1]["alone_failed"], 2);
}

TEST(LendingReport, ThePageIsWellFormedAndDrawsWhereTheKvLies) {
  const std::string html = FormatLendingHtml(Report());
  std::istringstream page(html.substr(html.find('\n') + 1));  // after <!DOCTYPE html>
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(page, tree));
  EXPECT_THAT(html, HasSubstr("Where the KV of one answer lies"));
  EXPECT_THAT(html, HasSubstr("with creditors"));
  EXPECT_THAT(html, HasSubstr("Throughput beside long requests"));
  LendingReport unseen = Report();
  unseen.slowdown->places.clear();
  unseen.skews.clear();
  EXPECT_THAT(FormatLendingHtml(unseen), Not(HasSubstr("<svg")));
}

}  // namespace
}  // namespace tandem::cli
