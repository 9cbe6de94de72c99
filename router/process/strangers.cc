#include "router/process/strangers.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace tandem::router {

void Strangers::Add(NodeKey node, std::string source, absl::Time now) {
  opened_.emplace(node, Opened{std::move(source), now});
}

NodeKey Strangers::ToGiveUp() const {
  TANDEM_CHECK(!opened_.empty(), "no stranger to give up");
  absl::flat_hash_map<absl::string_view, size_t> counts;
  size_t most = 0;
  for (const auto& [node, opened] : opened_) most = std::max(most, ++counts[opened.source]);
  for (const auto& [node, opened] : opened_)
    if (counts[opened.source] == most) return node;
  return opened_.begin()->first;
}

std::optional<NodeKey> Strangers::OpenedBy(absl::Time time) const {
  if (opened_.empty() || opened_.begin()->second.at > time) return std::nullopt;
  return opened_.begin()->first;
}

}  // namespace tandem::router
