// The tables of `tandem status`, `tandem ps` and `tandem top`.
// Thread safety: pure functions.
#pragma once

#include "cli/terminal/styled_line.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// No line is wider, where a function takes no other width.
inline constexpr int kTableColumns = 80;

// What `tandem status` shows: the router, its nodes, the KV transfers between them, and what engine
// steps cost. The column STATE of a node that is hot (cli/status/heat.h) says why.
StyledLines StatusLines(const v1::GetStatusResponse& status);

// "requests: 1 running, …": the router's totals, in at most 82 columns.
std::string RequestTotals(const v1::RouterStatus& router);

// A heading and a line for each request, in the order of the response. No line is wider than
// `columns`, 80 or more; names of requests get what is beyond 80.
StyledLines RequestLines(const v1::ListRequestsResponse& requests, int columns = kTableColumns);

}  // namespace tandem::cli
