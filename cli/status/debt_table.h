// What `tandem debts` shows: who has lent KV memory to whom.
// Thread safety: pure functions.
#pragma once

#include "cli/terminal/styled_line.h"
#include "nlohmann/json.hpp"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// The ledger as a table: one line for each pair of debtor and creditor, the largest debt first;
// then each debtor as the root of a tree of its creditors, whose edges are as long as their debts,
// with the rate and the round trip that the debtor has measured.
// No line is wider than 80 columns. One line says so when there are no debts.
StyledLines DebtLines(const v1::GetStatusResponse& status);
// The same for programs: {"debts": [{"debtor", "creditor", "blocks", "loans"}]}, in the status's
// order; with "bytes_per_second" and "round_trip_us" where the debtor has measured the link.
nlohmann::json DebtsJson(const v1::GetStatusResponse& status);

}  // namespace tandem::cli
