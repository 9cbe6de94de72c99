// Goal: where a sequence's KV lies is read from a status without counting lent blocks twice, and
// the report of lending holds it: as a table of 80 columns, as JSON, and as a chart on a page that
// is well-formed XML.
#include "cli/bench_lending/lending_report.h"

#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

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
  return report;
}

TEST(LendingReport, TheTableSaysHowMuchWasLentAtTheEnd) {
  const std::string table = FormatLendingTable(Report());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n')))
    EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(table, HasSubstr("KV with creditors, at the end           60% of 2000 tokens\n"));
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
}

TEST(LendingReport, ThePageIsWellFormedAndDrawsWhereTheKvLies) {
  const std::string html = FormatLendingHtml(Report());
  std::istringstream page(html.substr(html.find('\n') + 1));  // after <!DOCTYPE html>
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(page, tree));
  EXPECT_THAT(html, HasSubstr("Where the KV of one answer lies"));
  EXPECT_THAT(html, HasSubstr("with creditors"));
  LendingReport unseen = Report();
  unseen.slowdown->places.clear();
  EXPECT_THAT(FormatLendingHtml(unseen), Not(HasSubstr("<svg")));
}

}  // namespace
}  // namespace tandem::cli
