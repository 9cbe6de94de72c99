// Goal: what a turn computed again of its history is counted in whole blocks, and the report holds
// each turn's figures: as a table of 80 columns, as JSON, as a page that is well-formed XML.
#include "cli/bench_chats/chats_report.h"

#include <gmock/gmock.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

TEST(ChatTurn, CountsWhatWasComputedAgainOfWholeBlocks) {
  const auto recomputed = [](int32_t history, int32_t cached) {
    return ChatTurn{.history_tokens = history, .cached_tokens = cached}.recomputed_tokens(32);
  };
  EXPECT_EQ(recomputed(0, 0), 0);
  EXPECT_EQ(recomputed(31, 0), 0) << "a partial block";
  EXPECT_EQ(recomputed(32, 0), 0) << "its last token has no KV yet";
  EXPECT_EQ(recomputed(33, 0), 32);
  EXPECT_EQ(recomputed(200, 192), 0);
  EXPECT_EQ(recomputed(200, 160), 32);
  EXPECT_EQ(recomputed(200, 224), 0) << "new tokens may be found, too";
}

ChatsReport Report() {
  ChatsReport report{.settings = {{"model", "a <b> & \"c\""}}, .block_tokens = 32, .turns = {}};
  for (int chat = 0; chat < 3; ++chat) {
    report.turns.push_back({.turn = 1, .new_tokens = 500, .ttft_ms = 80, .alone_ms = 80});
    report.turns.push_back({.turn = 2,
                            .history_tokens = 600 + 2 * chat,
                            .new_tokens = 100,
                            .cached_tokens = chat == 1 ? 512 : 576,
                            .ttft_ms = 24.0 + chat,
                            .alone_ms = 20});
  }
  return report;
}

TEST(ChatsReport, TheTableHasEachTurnsFigures) {
  const std::string table = FormatChatsTable(Report());
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n')))
    EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(table, HasSubstr("   1        0    500        0          0      80.0     80.0"
                               "      80.0   1.00\n"));
  EXPECT_THAT(table, HasSubstr("   2      602    100      554         64      25.0     26.0"
                               "      20.0   1.25\n"));
}

TEST(ChatsReport, JsonHoldsTheSame) {
  const auto json = nlohmann::json::parse(FormatChatsJson(Report()));
  ASSERT_EQ(json["turns"].size(), 2u);
  const auto& turn = json["turns"][1];
  EXPECT_EQ(turn["turn"], 2);
  EXPECT_EQ(turn["history_tokens"], 602);
  EXPECT_EQ(turn["recomputed_tokens"], 64);
  EXPECT_EQ(turn["ttft_ms"]["p50"], 25);
  EXPECT_EQ(turn["ratio"], 1.25);
  EXPECT_EQ(json["recomputed"], 64);
}

TEST(ChatsReport, ThePageIsWellFormed) {
  const std::string html = FormatChatsHtml(Report());
  std::istringstream page(html.substr(html.find('\n') + 1));  // after <!DOCTYPE html>
  boost::property_tree::ptree tree;
  ASSERT_NO_THROW(boost::property_tree::read_xml(page, tree));
  EXPECT_THAT(html, HasSubstr("a &lt;b&gt; &amp;"));
  EXPECT_THAT(html, HasSubstr("<svg"));
}

}  // namespace
}  // namespace tandem::cli
