// What a router's status says of loans.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/quiet_cluster.h"

namespace tandem::testing {

// A node that keeps blocks for `debtor`; "" when none does.
inline std::string CreditorOf(const v1::GetStatusResponse& status, const std::string& debtor) {
  for (const v1::NodeStatus& node : status.nodes())
    if (node.node_id() == debtor && node.load().debts_size() > 0)
      return node.load().debts(0).creditor_node_id();
  return "";
}

// As Holdings, and what is lent and owed.
inline std::string HeldOrLent(const v1::GetStatusResponse& status) {
  std::string held = Holdings(status);
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.state() == "lost") continue;
    if (node.load().blocks_lent() > 0)
      absl::StrAppend(&held, node.node_id(), " lends ", node.load().blocks_lent(), " blocks; ");
    if (node.load().debts_size() > 0) absl::StrAppend(&held, node.node_id(), " owes; ");
  }
  return held;
}

}  // namespace tandem::testing
