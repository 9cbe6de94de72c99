// Checks that a router's ledger of debts is what its nodes owe: a router that a node has joined
// knows the node's debts one heartbeat after they, and the way between the two, last changed.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sim/world/violations.h"
#include "tandem/v1/client.pb.h"

namespace tandem::sim {

class LedgerChecker {
 public:
  explicit LedgerChecker(RunLog& log) : log_(log) {}

  // One router and one node that has joined it over `connection`.
  struct Pair {
    std::string router, node;
    uint64_t connection = 0;  // another number for another connection of the two
    bool reachable = false;   // both run, and messages come through
    // By the node's clock, which stands still while it is stopped; and how long it takes at most
    // until a heartbeat has arrived.
    absl::Time running;
    absl::Duration heartbeat;
  };
  // `owed`: what the node says now; `known`: what the router says that it said.
  void Check(const Pair& pair, const v1::NodeLoad& owed, const v1::NodeLoad& known) {
    const Debts owes = DebtsOf(owed), knows = DebtsOf(known);
    const auto key = std::pair(pair.router, pair.node);
    if (owes == knows || !pair.reachable) {
      since_.erase(key);
      return;
    }
    const auto [it, added] = since_.try_emplace(key, Since{pair.running, pair.connection, owes});
    Since& since = it->second;
    if (since.connection != pair.connection || since.owes != owes)
      since = {pair.running, pair.connection, owes};
    if (pair.running - since.running <= pair.heartbeat || std::exchange(since.reported, true))
      return;
    log_.Violate("ledger", absl::StrCat(pair.router, " says that ", pair.node, " owes ",
                                        ToText(knows), ", it owes ", ToText(owes), " for ",
                                        absl::FormatDuration(pair.running - since.running),
                                        ", at most ", absl::FormatDuration(pair.heartbeat)));
  }
  // Whether a router's ledger differed from a node's debts when Check was last called.
  bool follows_any() const { return !since_.empty(); }

 private:
  // Blocks and loans by creditor.
  using Debts = std::map<std::string, std::pair<int64_t, int64_t>>;
  struct Since {
    absl::Time running;
    uint64_t connection = 0;
    Debts owes;
    bool reported = false;
  };
  static Debts DebtsOf(const v1::NodeLoad& load) {
    Debts debts;
    for (const v1::Debt& debt : load.debts())
      debts[debt.creditor_node_id()] = {debt.blocks(), debt.loans()};
    return debts;
  }
  static std::string ToText(const Debts& debts) {
    std::string text;
    for (const auto& [creditor, debt] : debts)
      absl::StrAppend(&text, text.empty() ? "" : " and ", creditor, " ", debt.first, " blocks in ",
                      debt.second, " loans");
    return text.empty() ? "nothing" : text;
  }

  RunLog& log_;
  std::map<std::pair<std::string, std::string>, Since> since_;
};

}  // namespace tandem::sim
