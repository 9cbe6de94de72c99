// What nodes lend, summed by the debtors that can ask them (Node::CanLendTo): what all others lend
// to a node takes no look at each of them. Thread safety: none; plain values of one call. Refers to
// the nodes that were added.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "router/fleet/node.h"

namespace tandem::router {

// Blocks that nodes lend at most, and what is to spare of that for prompts beyond nodes' pools.
struct LentBlocks {
  int64_t most = 0, spare = 0;
};

class LendingSums {
 public:
  void Add(const Node& node, const LentBlocks& blocks) {
    LentBlocks& sum = node.lends_over_tcp ? to_all_hosts_[node.numerics_id]
                                          : to_its_host_[{node.numerics_id, node.host}];
    sum.most += blocks.most;
    sum.spare += blocks.spare;
  }
  // What all nodes but `debtor` lend to it. `own`: what was added of itself.
  LentBlocks ToDebtor(const Node& debtor, const LentBlocks& own) const {
    LentBlocks blocks = {.most = -own.most, .spare = -own.spare};
    const auto add = [&blocks](const auto& sums, const auto& key) {
      const auto sum = sums.find(key);
      if (sum == sums.end()) return;
      blocks.most += sum->second.most;
      blocks.spare += sum->second.spare;
    };
    add(to_all_hosts_, absl::string_view(debtor.numerics_id));
    add(to_its_host_, Site(debtor.numerics_id, debtor.host));
    return blocks;
  }

 private:
  using Site = std::pair<absl::string_view, absl::string_view>;  // numerics and host

  // By numerics. Bound: the nodes that were added.
  absl::flat_hash_map<absl::string_view, LentBlocks> to_all_hosts_;
  // Bound: the nodes that were added.
  absl::flat_hash_map<Site, LentBlocks> to_its_host_;
};

}  // namespace tandem::router
