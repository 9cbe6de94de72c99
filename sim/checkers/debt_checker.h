// Checks that debts make no cycle: no node owes memory to a node that owes memory to it, by way of
// others or directly. docs/LENDING.md says why there can be none. Thread safety: a pure function.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace tandem::sim {

// The nodes that `node` owes memory to.
using CreditorsOf = std::function<std::set<std::string>(const std::string& node)>;

// Whether following debts from `node` leads back to it.
inline bool OwesItself(const std::string& node, const CreditorsOf& creditors_of) {
  std::set<std::string> seen;
  std::vector<std::string> ahead = {node};
  while (!ahead.empty()) {
    const std::string debtor = ahead.back();
    ahead.pop_back();
    for (const std::string& creditor : creditors_of(debtor)) {
      if (creditor == node) return true;
      if (seen.insert(creditor).second) ahead.push_back(creditor);
    }
  }
  return false;
}

}  // namespace tandem::sim
