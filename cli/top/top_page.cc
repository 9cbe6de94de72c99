#include "cli/top/top_page.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/status/heat.h"
#include "cli/status/quantities.h"
#include "cli/status/status_table.h"

namespace tandem::cli {
namespace {

using Style = StyledLine::Style;

constexpr char kTopNodeRow[] = "%-16s %-7s %5s %5s %6s %s  %s";
constexpr int kStateColumns = 13;
// What stands beside a node's bar: the columns of kTopNodeRow, and the state.
constexpr int kBesideBar = 16 + 1 + 7 + 1 + 5 + 1 + 5 + 1 + 6 + 1 + 2 + kStateColumns;
constexpr char kKeys[] =
    "q quits   p pauses   space looks now   up and down move the nodes   h help";

// What rose from `before` to `now`, each second. 0 for a count that fell: its owner began anew.
double PerSecond(int64_t now, int64_t before, double seconds) {
  return seconds <= 0 || now < before ? 0 : static_cast<double>(now - before) / seconds;
}

// The node's work: tokens that a decode node generated, or prompt tokens that a prefill node
// computed.
std::string TokenRate(const v1::NodeStatus& node, const NodeRates& rates) {
  const std::optional<NodeRates::Rate> rate = rates.Of(node.node_id());
  if (!rate.has_value()) return "-";
  return ShortCount(node.role() == "prefill" ? rate->prompt : rate->generated);
}

double RequestsFinishedPerSecond(const ClusterView& view) {
  if (!view.last.has_value() || !view.before.has_value()) return 0;
  return PerSecond(view.last->status.router().requests_finished(),
                   view.before->status.router().requests_finished(),
                   absl::ToDoubleSeconds(view.last->at - view.before->at));
}

StyledLine TopNodeLine(const v1::NodeStatus& node, const NodeRates& rates, int bar) {
  const v1::NodeLoad& load = node.load();
  const std::string heat = HeatOf(node);
  return {absl::StrFormat(kTopNodeRow, Fit(node.node_id(), 16), Fit(node.role(), 7),
                          ShortCount(static_cast<double>(load.sequences_running())),
                          ShortCount(static_cast<double>(load.sequences_waiting())),
                          TokenRate(node, rates), BlocksBar(load, bar),
                          Cut(heat.empty() ? node.state() : heat, kStateColumns)),
          heat.empty() ? Style::kPlain : Style::kHot};
}

void AppendHelp(StyledLines& lines) {
  for (const char* line : {
           "q, Ctrl-C    leaves",
           "p            stops looking, and goes on",
           "space        looks now",
           "up, down     move the list of nodes, when it is longer than the screen",
           "h            this list, and back",
           "",
           "RUN, WAIT    sequences in the node's batch, and waiting for it",
           "of prompts   prompt tokens that nodes computed, not those from caches or other nodes",
           "TOK/S        tokens that a decode node generated, or that a prefill node computed",
           "KV           the node's blocks: # used, = cached, ! quarantined, . free",
           "STATE        red: why requests wait, or will soon",
       })
    lines.push_back({line});
}

// `rows`: for the heading, the nodes and a line for those that do not fit.
void AppendNodes(const ClusterView& view, const TopChoices& choices, int columns, int rows,
                 StyledLines& lines) {
  const auto& nodes = view.last->status.nodes();
  const int bar = std::max(columns - kBesideBar, 4);
  lines.push_back(
      {absl::StrFormat(
           kTopNodeRow, "NODE", "ROLE", "RUN", "WAIT", "TOK/S",
           Fit(bar >= 40 ? "KV: # used = cached ! quarantined . free" : "KV #used =cached", bar),
           "STATE"),
       Style::kHeading});
  if (nodes.empty()) lines.push_back({"no node has joined", Style::kHot});
  const int room = std::max(rows - 1, 1);
  const bool all = nodes.size() <= room;
  const int fit = all ? nodes.size() : std::max(room - 1, 1);
  const int first = std::clamp(choices.first_node, 0, nodes.size() - fit);
  for (int i = first; i < first + fit; ++i) lines.push_back(TopNodeLine(nodes[i], view.nodes, bar));
  if (!all)
    lines.push_back({absl::StrFormat("nodes %d to %d of %d", first + 1, first + fit, nodes.size()),
                     Style::kDim});
}

void AppendRequests(const ClusterView& view, int columns, int rows, StyledLines& lines) {
  if (rows < 2) return;
  lines.push_back({""});
  if (!view.requests_error.ok()) {
    lines.push_back({absl::StrCat("requests: ", view.requests_error.message()), Style::kHot});
    return;
  }
  StyledLines requests = RequestLines(view.last->requests, columns);
  requests.resize(std::min<size_t>(requests.size(), static_cast<size_t>(rows - 1)));
  lines.insert(lines.end(), requests.begin(), requests.end());
}

StyledLine LastLine(const ClusterView& view, const TopChoices& choices, absl::Time now) {
  if (!view.error.ok()) {
    const std::string age =
        view.last.has_value()
            ? absl::StrCat("shown is ", ShortAge(absl::ToDoubleSeconds(now - view.last->at)),
                           " old; ")
            : "";
    return {absl::StrCat("no answer: ", age, view.error.message()), Style::kHot};
  }
  if (choices.paused) return {"paused; p goes on, space looks now, q quits", Style::kHot};
  return {kKeys, Style::kDim};
}

}  // namespace

std::string BlocksBar(const v1::NodeLoad& load, int width) {
  const std::array<std::pair<char, int64_t>, 4> parts = {{{'#', load.blocks_used()},
                                                          {'=', load.blocks_cached()},
                                                          {'!', load.blocks_quarantined()},
                                                          {'.', load.blocks_free()}}};
  double total = 0;
  for (const auto& [mark, blocks] : parts)
    total += static_cast<double>(std::max<int64_t>(blocks, 0));
  if (total <= 0 || width <= 0) return std::string(static_cast<size_t>(std::max(width, 0)), ' ');
  std::array<int, 4> widths{};
  int left = width;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].second <= 0) continue;
    const double share = static_cast<double>(parts[i].second) / total * width;
    widths[i] = std::max(static_cast<int>(share), 1);
    left -= widths[i];
  }
  // What rounding left, or took too much, the widest state gives or gets.
  *std::max_element(widths.begin(), widths.end()) += left;
  std::string bar;
  for (size_t i = 0; i < parts.size(); ++i)
    bar.append(static_cast<size_t>(std::max(widths[i], 0)), parts[i].first);
  bar.resize(static_cast<size_t>(width), '.');
  return bar;
}

StyledLines TopPage(const std::string& router, const ClusterView& view, const TopChoices& choices,
                    PageSize size, absl::Time now) {
  StyledLines lines;
  if (view.last.has_value()) {
    const v1::GetStatusResponse& status = view.last->status;
    lines.push_back(
        {absl::StrFormat("tandem top   router %s at %s   version %s   up %s", status.router_id(),
                         router, status.version(), ShortAge(status.uptime_s()))});
    lines.push_back({RequestTotals(status.router())});
    const NodeRates::Rate rates = view.nodes.Sum();
    lines.push_back({absl::StrFormat(
        "each second: %s tokens generated, %s of prompts, %s requests done, %s of KV",
        ShortCount(rates.generated), ShortCount(rates.prompt),
        ShortCount(RequestsFinishedPerSecond(view)), ShortBytes(rates.kv_bytes))});
    lines.push_back({""});
  } else {
    lines.push_back({absl::StrFormat("tandem top   router at %s", router)});
  }
  const int body = size.rows - static_cast<int>(lines.size()) - 1;  // less the last line
  if (choices.help) {
    AppendHelp(lines);
  } else if (view.last.has_value() && body > 0) {
    // Nodes get what they need, but no more than half while requests need the other half.
    const int wanted = std::max(view.last->status.nodes_size(), 1) + 1;
    const int requests = std::min(view.last->requests.requests_size() + 2, body - body / 2);
    const int rows = std::min(wanted, body - requests);
    AppendNodes(view, choices, size.columns, rows, lines);
    const int used = static_cast<int>(lines.size()) - (size.rows - 1 - body);
    AppendRequests(view, size.columns, body - used, lines);
  }
  lines.resize(static_cast<size_t>(std::max(size.rows - 1, 0)), StyledLine{});
  lines.push_back(LastLine(view, choices, now));
  for (StyledLine& line : lines) line.text = Cut(line.text, size.columns);
  if (static_cast<int>(lines.size()) > size.rows) lines.erase(lines.begin());
  return lines;
}

}  // namespace tandem::cli
