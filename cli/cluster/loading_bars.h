// One bar for the weights that a cluster's nodes load, from their log lines (see
// common/node/loading_bar.h).
// Thread safety: none; the cluster's mutex guards it. Owner: the process cluster.
#pragma once

#include <string>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

class LoadingBars {
 public:
  // A node says how far it is. A stage that is over is no longer shown.
  void Set(const std::string& node, absl::string_view stage, int percent) {
    nodes_.erase(node);
    if (percent < 100) nodes_[node] = {std::string(stage), percent};
  }
  // The node has ended, or works.
  void Remove(const std::string& node) { nodes_.erase(node); }
  bool empty() const { return nodes_.empty(); }
  // One line of at most `columns` characters; empty while no node loads.
  std::string Text(int columns) const;

 private:
  struct State {
    std::string stage;
    int percent = 0;
  };
  // Bound: the cluster's nodes, at most 128.
  absl::btree_map<std::string, State> nodes_;
};

}  // namespace tandem::cli
