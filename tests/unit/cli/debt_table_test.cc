// Goal: `tandem debts` names each debt once, in its table, its picture and its JSON, the largest
// first; it fits 80 columns whatever nodes report, and no name steers the terminal.
#include "cli/status/debt_table.h"

#include <gmock/gmock.h>

#include <limits>

#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

std::string Text(const v1::GetStatusResponse& status) {
  std::string text;
  for (const StyledLine& line : DebtLines(status)) {
    EXPECT_LE(line.text.size(), 80u) << line.text;
    text += line.text + "\n";
  }
  return text;
}

v1::NodeStatus& AddNode(v1::GetStatusResponse& status, const std::string& id, int64_t blocks) {
  v1::NodeStatus& node = *status.add_nodes();
  node.set_node_id(id);
  node.mutable_load()->set_blocks_total(blocks);
  return node;
}

void AddDebt(v1::NodeStatus& debtor, const std::string& creditor, int64_t blocks, int64_t loans) {
  v1::Debt& debt = *debtor.mutable_load()->add_debts();
  debt.set_creditor_node_id(creditor);
  debt.set_blocks(blocks);
  debt.set_loans(loans);
}

std::vector<std::string> Texts(const StyledLines& lines) {
  std::vector<std::string> texts;
  for (const StyledLine& line : lines) texts.push_back(line.text);
  return texts;
}

Words WordsOf(const StyledLine& line) { return absl::StrSplit(line.text, ' ', absl::SkipEmpty()); }

// decode-0 owes decode-1 a little and decode-2 much; decode-2 owes decode-1.
v1::GetStatusResponse ThreeDebts() {
  v1::GetStatusResponse status;
  v1::NodeStatus& first = AddNode(status, "decode-0", 40);
  AddDebt(first, "decode-1", 10, 1);
  AddDebt(first, "decode-2", 120, 4);
  AddNode(status, "decode-1", 100);
  AddDebt(AddNode(status, "decode-2", 240), "decode-1", 60, 2);
  return status;
}

TEST(DebtTable, TheTableHasTheLargestDebtFirstWithItsSharesOfBothPools) {
  const StyledLines lines = DebtLines(ThreeDebts());
  ASSERT_GE(lines.size(), 4u);
  EXPECT_EQ(lines[0].style, StyledLine::Style::kHeading);
  EXPECT_THAT(WordsOf(lines[0]),
              ElementsAre("DEBTOR", "CREDITOR", "BLOCKS", "LOANS", "OF", "OWN", "OF", "LENT"));
  EXPECT_THAT(WordsOf(lines[1]), ElementsAre("decode-0", "decode-2", "120", "4", "300%", "50%"));
  EXPECT_THAT(WordsOf(lines[2]), ElementsAre("decode-2", "decode-1", "60", "2", "25%", "60%"));
  EXPECT_THAT(WordsOf(lines[3]), ElementsAre("decode-0", "decode-1", "10", "1", "25%", "10%"));
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(lines[i].style, StyledLine::Style::kPlain) << i;
}

TEST(DebtTable, ThePictureIsATreeOfEachDebtorWithEdgesAsLongAsItsDebts) {
  const std::vector<std::string> texts = Texts(DebtLines(ThreeDebts()));
  const std::vector<std::string> picture(texts.begin() + 4, texts.end());
  EXPECT_THAT(picture, ElementsAre("", "decode-0",                                          //
                                   "  " + std::string(16, '-') + "> decode-2  120 blocks",  //
                                   "  " + std::string(1, '-') + "> decode-1  10 blocks",    //
                                   "", "decode-2",                                          //
                                   "  " + std::string(8, '-') + "> decode-1  60 blocks"));
}

TEST(DebtTable, TheJsonHasEachDebtWithItsNumbers) {
  EXPECT_EQ(DebtsJson(ThreeDebts()), nlohmann::json::parse(R"({"debts": [
    {"debtor": "decode-0", "creditor": "decode-1", "blocks": 10, "loans": 1},
    {"debtor": "decode-0", "creditor": "decode-2", "blocks": 120, "loans": 4},
    {"debtor": "decode-2", "creditor": "decode-1", "blocks": 60, "loans": 2}]})"));
}

TEST(DebtTable, AnEmptyLedgerSaysSo) {
  v1::GetStatusResponse status;
  AddNode(status, "decode-0", 40);
  for (const v1::GetStatusResponse& empty : {v1::GetStatusResponse(), status}) {
    EXPECT_THAT(Texts(DebtLines(empty)), ElementsAre("No node has borrowed KV blocks."));
    EXPECT_EQ(DebtsJson(empty).dump(), R"({"debts":[]})");
  }
}

// The creditor has left, or has not joined this router.
TEST(DebtTable, ACreditorThatTheRouterDoesNotKnowStandsOut) {
  v1::GetStatusResponse status;
  AddDebt(AddNode(status, "decode-0", 40), "gone", 10, 1);
  const StyledLines lines = DebtLines(status);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_THAT(WordsOf(lines[1]), ElementsAre("decode-0", "gone", "10", "1", "25%", "-"));
  EXPECT_EQ(lines[1].style, StyledLine::Style::kHot);
  EXPECT_EQ(DebtsJson(status)["debts"][0]["creditor"], "gone");
}

TEST(DebtTable, ALostNodesLastReportIsNoDebt) {
  v1::GetStatusResponse status = ThreeDebts();
  status.mutable_nodes(0)->set_state("lost");
  EXPECT_EQ(DebtLines(status).size(), 5u) << "one debt in the table and in the picture";
  EXPECT_EQ(DebtsJson(status)["debts"].size(), 1u);
}

TEST(DebtTable, ANodeWithoutANameHasAPlaceInTableAndPicture) {
  v1::GetStatusResponse status;
  AddDebt(AddNode(status, "", 40), "", 10, 1);
  const StyledLines lines = DebtLines(status);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(WordsOf(lines[1]), ElementsAre("-", "-", "10", "1", "25%", "25%"));
  EXPECT_EQ(lines[3].text, "-");
  EXPECT_EQ(lines[4].text, "  " + std::string(16, '-') + "> -  10 blocks");
}

// Nodes report these figures; a router passes them on.
TEST(DebtTable, NoReportMakesALineWiderThanEightyColumns) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t count : {kMax, int64_t{10'000'000}, int64_t{0}, int64_t{-1}, -kMax}) {
    v1::GetStatusResponse status;
    AddDebt(AddNode(status, std::string(300, 'd'), 1), std::string(300, 'c'), count, count);
    AddDebt(AddNode(status, "other", kMax), "other", 7, kMax);
    for (const StyledLine& line : DebtLines(status))
      EXPECT_LE(line.text.size(), 80u) << count << ": " << line.text;
  }
}

TEST(DebtTable, ALongNameIsCutVisiblyAndWholeInJson) {
  v1::GetStatusResponse status;
  AddDebt(AddNode(status, std::string(30, 'd'), 40), std::string(30, 'c'), 10, 1);
  const StyledLines lines = DebtLines(status);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_THAT(lines[1].text, StartsWith(std::string(19, 'd') + "~  " + std::string(19, 'c') + "~"));
  EXPECT_EQ(DebtsJson(status)["debts"][0]["debtor"], std::string(30, 'd'));
}

TEST(DebtTable, ANameCannotSteerTheTerminal) {
  v1::GetStatusResponse status;
  AddDebt(AddNode(status, "\033[2Jgone\n", 40), "\x1b]0;x\x07\xC3\xA9", 10, 1);
  for (const StyledLine& line : DebtLines(status)) {
    for (const char c : line.text) EXPECT_TRUE(c >= 0x20 && c <= 0x7E) << line.text;
  }
}

TEST(DebtTable, ItShowsWhatTheDebtorHasMeasured) {
  v1::GetStatusResponse status;
  v1::NodeStatus& node = AddNode(status, "debtor", 40);
  AddDebt(node, "measured", 40, 1);
  AddDebt(node, "not-measured", 20, 1);
  v1::CreditorLink& link = *node.add_creditor_links();
  link.set_creditor_node_id("measured");
  link.mutable_blocks()->set_bytes_per_second(2e9);
  link.set_round_trip_us(45.4);
  EXPECT_THAT(Text(status), HasSubstr("> measured  40 blocks, 2.0GB/s, 45 us\n"));
  EXPECT_THAT(Text(status), HasSubstr("> not-measured  20 blocks\n"));
  const nlohmann::json debts = DebtsJson(status)["debts"];
  EXPECT_EQ(debts[0]["bytes_per_second"], 2e9);
  EXPECT_EQ(debts[0]["round_trip_us"], 45.4);
  EXPECT_FALSE(debts[1].contains("round_trip_us"));
}

TEST(DebtTable, NoMeasuredFigureIsTooWide) {
  v1::GetStatusResponse status;
  v1::NodeStatus& node = AddNode(status, "debtor", 40);
  AddDebt(node, std::string(100, 'c'), 9'999'999, 1);
  v1::CreditorLink& link = *node.add_creditor_links();
  link.set_creditor_node_id(std::string(100, 'c'));
  link.mutable_blocks()->set_bytes_per_second(999e9);
  link.set_round_trip_us(1e300);
  EXPECT_THAT(Text(status), HasSubstr("9999999 blocks"));
}

}  // namespace
}  // namespace tandem::cli
