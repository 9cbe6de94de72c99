#include "cli/status/debt_table.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/status/quantities.h"

namespace tandem::cli {
namespace {

using Style = StyledLine::Style;

constexpr int kNameColumns = 20;
constexpr int kEdgeColumns = 16;  // of the largest debt
constexpr double kShownUsMax = 999'999;

struct Edge {
  std::string debtor, creditor;
  int64_t blocks = 0, loans = 0;
  int64_t debtor_blocks = 0;    // the debtor's own pool
  int64_t creditor_blocks = 0;  // 0: the creditor is not in the status
  // As the debtor measured the link; 0: it has not.
  double bytes_per_second = 0, round_trip_us = 0;
};

std::string Name(const std::string& name) { return name.empty() ? "-" : Cut(name, kNameColumns); }

// At most 7 columns: exact, or of a few digits where that is too long.
std::string Blocks(int64_t count) {
  const std::string exact = absl::StrCat(std::max<int64_t>(count, 0));
  return exact.size() <= 7 ? exact : ShortCount(static_cast<double>(count));
}

// At most 5 columns.
std::string DebtShare(int64_t blocks, int64_t total) {
  if (total <= 0) return "-";
  const double percent = 100.0 * static_cast<double>(blocks) / static_cast<double>(total);
  return absl::StrFormat("%.0f%%", std::clamp(percent, 0.0, 9999.0));
}

// In columns of the picture; `largest`: of all debts.
size_t EdgeLength(int64_t blocks, int64_t largest) {
  const double part =
      static_cast<double>(blocks) / static_cast<double>(std::max<int64_t>(1, largest));
  return static_cast<size_t>(std::clamp(kEdgeColumns * part, 1.0, double{kEdgeColumns}));
}

// A node that was lost owes nothing any more: its load is the last that it reported.
bool Owes(const v1::NodeStatus& node) { return node.state() != "lost"; }

std::vector<Edge> EdgesOf(const v1::GetStatusResponse& status) {
  std::vector<Edge> edges;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!Owes(node)) continue;
    for (const v1::Debt& debt : node.load().debts()) {
      Edge edge{.debtor = node.node_id(),
                .creditor = debt.creditor_node_id(),
                .blocks = debt.blocks(),
                .loans = debt.loans(),
                .debtor_blocks = node.load().blocks_total()};
      for (const v1::NodeStatus& other : status.nodes())
        if (other.node_id() == edge.creditor) edge.creditor_blocks = other.load().blocks_total();
      for (const v1::CreditorLink& link : node.creditor_links()) {
        if (link.creditor_node_id() != edge.creditor) continue;
        edge.bytes_per_second = link.blocks().bytes_per_second();
        edge.round_trip_us = link.round_trip_us();
      }
      edges.push_back(std::move(edge));
    }
  }
  std::stable_sort(edges.begin(), edges.end(),
                   [](const Edge& a, const Edge& b) { return a.blocks > b.blocks; });
  return edges;
}

// Empty where nothing was measured.
std::string LinkText(const Edge& edge) {
  std::string text;
  if (edge.bytes_per_second > 0)
    absl::StrAppend(&text, ", ", ShortBytes(edge.bytes_per_second), "/s");
  if (edge.round_trip_us > 0)
    absl::StrAppendFormat(&text, ", %.0f us", std::min(edge.round_trip_us, kShownUsMax));
  return text;
}

}  // namespace

StyledLines DebtLines(const v1::GetStatusResponse& status) {
  const std::vector<Edge> edges = EdgesOf(status);
  if (edges.empty()) return {{"No node has borrowed KV blocks.", Style::kDim}};
  constexpr char kRow[] = "%-20s  %-20s  %7s  %6s  %8s  %8s";
  StyledLines lines = {
      {absl::StrFormat(kRow, "DEBTOR", "CREDITOR", "BLOCKS", "LOANS", "OF OWN", "OF LENT"),
       Style::kHeading}};
  for (const Edge& edge : edges) {
    lines.push_back(
        {absl::StrFormat(kRow, Name(edge.debtor), Name(edge.creditor), Blocks(edge.blocks),
                         ShortCount(static_cast<double>(edge.loans)),
                         DebtShare(edge.blocks, edge.debtor_blocks),
                         DebtShare(edge.blocks, edge.creditor_blocks)),
         edge.creditor_blocks == 0 ? Style::kHot : Style::kPlain});
  }
  std::vector<std::string> drawn;
  for (const Edge& root : edges) {
    if (std::find(drawn.begin(), drawn.end(), root.debtor) != drawn.end()) continue;
    drawn.push_back(root.debtor);
    lines.push_back({"", Style::kPlain});
    lines.push_back({Name(root.debtor), Style::kHeading});
    for (const Edge& edge : edges) {
      if (edge.debtor != root.debtor) continue;
      lines.push_back(
          {absl::StrFormat("  %s> %s  %s blocks%s",
                           std::string(EdgeLength(edge.blocks, edges.front().blocks), '-'),
                           Name(edge.creditor), Blocks(edge.blocks), LinkText(edge)),
           Style::kPlain});
    }
  }
  return lines;
}

nlohmann::json DebtsJson(const v1::GetStatusResponse& status) {
  nlohmann::json debts = nlohmann::json::array();
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!Owes(node)) continue;
    for (const v1::Debt& debt : node.load().debts()) {
      nlohmann::json edge = {{"debtor", node.node_id()},
                             {"creditor", debt.creditor_node_id()},
                             {"blocks", debt.blocks()},
                             {"loans", debt.loans()}};
      for (const v1::CreditorLink& link : node.creditor_links()) {
        if (link.creditor_node_id() != debt.creditor_node_id()) continue;
        edge["bytes_per_second"] = link.blocks().bytes_per_second();
        edge["round_trip_us"] = link.round_trip_us();
      }
      debts.push_back(std::move(edge));
    }
  }
  return {{"debts", debts}};
}

}  // namespace tandem::cli
