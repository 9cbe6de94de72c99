// The page that `tandem top` shows: the router's totals and rates, its nodes with their KV blocks
// by state, and the requests that have run for longest. Thread safety: pure functions.
#pragma once

#include <string>

#include "cli/terminal/styled_line.h"
#include "cli/top/cluster_sample.h"

namespace tandem::cli {

struct PageSize {
  int columns = 80;
  int rows = 24;
};

struct TopChoices {
  int first_node = 0;  // nodes above the list's start; a larger number than there are counts as all
  bool paused = false;
  bool help = false;  // the list of keys in place of nodes and requests
};

// `router`: the address that was asked. `now`: for the age of what is shown. Returns at most
// `size.rows` lines of at most `size.columns` columns; the last says which keys there are.
StyledLines TopPage(const std::string& router, const ClusterView& view, const TopChoices& choices,
                    PageSize size, absl::Time now);

// `width` characters for a node's blocks: used #, cached =, quarantined !, free a dot. A state that
// has blocks has a character, as long as there are at least four.
std::string BlocksBar(const v1::NodeLoad& load, int width);

}  // namespace tandem::cli
