// Goal: `tandem debts` shows each debt once, with the rate and the round trip of its link where the
// debtor has measured them, within 80 columns.
#include "cli/status/debt_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

std::string Text(const v1::GetStatusResponse& status) {
  std::string text;
  for (const StyledLine& line : DebtLines(status)) {
    EXPECT_LE(line.text.size(), 80u) << line.text;
    text += line.text + "\n";
  }
  return text;
}

TEST(DebtTable, ShowsWhatTheDebtorHasMeasured) {
  v1::GetStatusResponse status;
  v1::NodeStatus& node = *status.add_nodes();
  node.set_node_id("debtor");
  for (const char* creditor : {"measured", "not-measured"}) {
    v1::Debt& debt = *node.mutable_load()->add_debts();
    debt.set_creditor_node_id(creditor);
    debt.set_blocks(creditor[0] == 'm' ? 40 : 20);
  }
  v1::CreditorLink& link = *node.add_creditor_links();
  link.set_creditor_node_id("measured");
  link.mutable_blocks()->set_bytes_per_second(2e9);
  link.set_round_trip_us(45.4);
  EXPECT_THAT(Text(status), HasSubstr("> measured  40 blocks, 2.0GB/s, 45 us\n"));
  EXPECT_THAT(Text(status), HasSubstr("> not-measured  20 blocks\n"));
}

TEST(DebtTable, NoFigureIsTooWide) {
  v1::GetStatusResponse status;
  v1::NodeStatus& node = *status.add_nodes();
  node.set_node_id("debtor");
  v1::Debt& debt = *node.mutable_load()->add_debts();
  debt.set_creditor_node_id(std::string(100, 'c'));
  debt.set_blocks(9'999'999);
  v1::CreditorLink& link = *node.add_creditor_links();
  link.set_creditor_node_id(debt.creditor_node_id());
  link.mutable_blocks()->set_bytes_per_second(999e9);
  link.set_round_trip_us(1e300);
  EXPECT_THAT(Text(status), HasSubstr("9999999 blocks"));
}

}  // namespace
}  // namespace tandem::cli
