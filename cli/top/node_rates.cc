#include "cli/top/node_rates.h"

#include <algorithm>

namespace tandem::cli {

void NodeRates::Add(const v1::GetStatusResponse& status, absl::Time at) {
  for (const v1::NodeStatus& told : status.nodes()) {
    const v1::NodeCounters& counters = told.counters();
    const Totals totals{.generated = counters.generated_tokens(),
                        .prompt = counters.prompt_tokens().computed(),
                        .kv_bytes = counters.kv_bytes_sent()};
    Node& node = nodes_[told.node_id()];
    const Totals last = node.reports.empty() ? totals : node.reports.back().totals;
    const bool anew = told.incarnation() != node.incarnation || totals.generated < last.generated ||
                      totals.prompt < last.prompt || totals.kv_bytes < last.kv_bytes;
    if (anew || node.reports.empty()) {
      node = {.incarnation = told.incarnation()};
      node.reports.push_back({at, totals, /*seen_to_come=*/false});
    } else {
      Add(totals, at, node);
    }
    node.seen = at;
  }
  absl::erase_if(nodes_, [at](const auto& node) { return node.second.seen != at; });
}

void NodeRates::Add(const Totals& totals, absl::Time at, Node& node) {
  std::deque<Report>& reports = node.reports;
  node.has_rate = true;
  if (totals == reports.back().totals) {
    if (at - reports.back().at > kStandsFor) node.rate = {};
    return;
  }
  if (at - reports.back().at > kStandsFor) {
    // The node was idle. What it did since happened after the report before this one.
    reports.assign(1, {node.seen, reports.back().totals, /*seen_to_come=*/false});
  }
  reports.push_back({at, totals});
  while (reports.size() > 2 && (!reports[0].seen_to_come || at - reports[1].at >= kWindow))
    reports.pop_front();
  const Report& first = reports.front();
  const absl::Duration between = at - first.at;
  const double seconds =
      absl::ToDoubleSeconds(first.seen_to_come ? between : std::max(between, kReportEvery));
  if (seconds <= 0) return;
  const auto each_second = [seconds](int64_t now, int64_t before) {
    return static_cast<double>(now - before) / seconds;
  };
  node.rate = {.generated = each_second(totals.generated, first.totals.generated),
               .prompt = each_second(totals.prompt, first.totals.prompt),
               .kv_bytes = each_second(totals.kv_bytes, first.totals.kv_bytes)};
}

std::optional<NodeRates::Rate> NodeRates::Of(const std::string& node_id) const {
  const auto found = nodes_.find(node_id);
  if (found == nodes_.end() || !found->second.has_rate) return std::nullopt;
  return found->second.rate;
}

NodeRates::Rate NodeRates::Sum() const {
  Rate sum;
  for (const auto& [id, node] : nodes_) {
    sum.generated += node.rate.generated;
    sum.prompt += node.rate.prompt;
    sum.kv_bytes += node.rate.kv_bytes;
  }
  return sum;
}

}  // namespace tandem::cli
