#include "cli/status/status_table.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "cli/status/heat.h"
#include "cli/status/quantities.h"
#include "router/core/service_tier.h"

namespace tandem::cli {
namespace {

using Style = StyledLine::Style;

std::string Count(int64_t count) { return ShortCount(static_cast<double>(count)); }

constexpr char kNodeRow[] = "%-20s %-7s %5s %5s %4s %5s %6s %6s  %s";
constexpr char kPairRow[] = "%-15s %-15s %-11s %5s %6s %8s %8s %5s";
constexpr char kRequestRow[] = "%s %-10s %6s %6s %6s %-10s %s";
constexpr char kStorageRow[] = "%-20s %-6s %6s %6s %10s %5s %10s %5s";
constexpr char kStepRow[] = "%-20s %6s %9s %9s %5s %11s %11s";

StyledLine Heading(const std::string& text) { return {text, Style::kHeading}; }

std::string PercentText(int64_t part, int64_t whole) {
  return absl::StrCat(Percent(part, whole), "%");
}

// `error`: 0.05 is "5%".
std::string ErrorText(double error) {
  return absl::StrFormat("%.0f%%", std::clamp(100 * error, 0.0, 999.0));
}

std::string Milliseconds(double ms, int digits) {
  return absl::StrFormat("%.*fms", digits, std::clamp(ms, 0.0, 9999.0));
}

StyledLine NodeLine(const v1::NodeStatus& node) {
  const v1::NodeLoad& load = node.load();
  const std::string heat = HeatOf(node);
  const std::string row = absl::StrFormat(
      kNodeRow, Fit(node.node_id(), 20), Fit(node.role(), 7), Count(load.sequences_running()),
      Count(load.sequences_waiting()), PercentText(load.blocks_used(), load.blocks_total()),
      PercentText(load.blocks_cached(), load.blocks_total()), Count(load.blocks_total()),
      Count(node.counters().generated_tokens()), heat.empty() ? node.state() : heat);
  return {Cut(row, kTableColumns), heat.empty() ? Style::kPlain : Style::kHot};
}

// Whether a pair's KV transfers tell its rate: the fit of the first few may be far off.
bool TellsRate(const v1::NodePairStatus& pair) {
  constexpr int64_t kSamplesEnough = 8;
  constexpr double kErrorSmall = 0.25;
  return pair.bytes_per_second() > 0 &&
         (pair.rate_samples() >= kSamplesEnough || pair.rate_relative_error() <= kErrorSmall);
}

StyledLine PairLine(const v1::NodePairStatus& pair) {
  const bool fitted = TellsRate(pair);
  return {absl::StrFormat(kPairRow, Fit(pair.from_node(), 15), Fit(pair.to_node(), 15),
                          Fit(pair.transport(), 11), Count(pair.kv_transfers()),
                          ShortBytes(static_cast<double>(pair.kv_bytes())),
                          Milliseconds(pair.last_transfer_ms(), 1),
                          fitted ? absl::StrCat(ShortBytes(pair.bytes_per_second()), "/s") : "-",
                          fitted ? ErrorText(pair.rate_relative_error()) : "-")};
}

// What the node's cost model predicted for its engine steps, and what they took.
StyledLine StepLine(const v1::NodeStatus& node) {
  const v1::StepCost& cost = node.step_cost();
  const auto steps = static_cast<double>(cost.samples());
  return {absl::StrFormat(
      kStepRow, Fit(node.node_id(), 20), Count(cost.samples()),
      Milliseconds(cost.predicted_us() / steps / 1e3, 2),
      Milliseconds(cost.actual_us() / steps / 1e3, 2), ErrorText(cost.median_relative_error()),
      Milliseconds(cost.prompt_row_us() / 1e3, 3),
      Milliseconds((cost.generated_row_us() + cost.sampled_row_us()) / 1e3, 3))};
}

void AppendSteps(const v1::GetStatusResponse& status, StyledLines& lines) {
  bool first = true;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.step_cost().samples() <= 0) continue;
    if (first) {
      lines.push_back({""});
      lines.push_back(Heading(absl::StrFormat(kStepRow, "ENGINE STEPS OF", "STEPS", "PREDICTED",
                                              "TOOK", "ERROR", "A PROMPT", "A NEW")));
      lines.push_back(
          {absl::StrFormat(kStepRow, "", "", "", "", "", "TOKEN", "TOKEN"), Style::kHeading});
    }
    first = false;
    lines.push_back(StepLine(node));
  }
}

// What a tier of a node's storage holds, and what reads from and writes to it cost.
struct TierShown {
  const char* name;
  int64_t blocks;
  int64_t hits;
  const v1::CopyCost& read;
  const v1::CopyCost& write;
};

StyledLine TierLine(const v1::NodeStatus& node, const TierShown& tier) {
  const auto rate = [](const v1::CopyCost& cost) {
    return cost.bytes_per_second() > 0 ? absl::StrCat(ShortBytes(cost.bytes_per_second()), "/s")
                                       : std::string("-");
  };
  const auto off = [](const v1::CopyCost& cost) {
    return cost.samples() > 0 ? ErrorText(cost.relative_error()) : std::string("-");
  };
  return {absl::StrFormat(kStorageRow, Fit(node.node_id(), 20), tier.name, Count(tier.blocks),
                          Count(tier.hits), rate(tier.read), off(tier.read), rate(tier.write),
                          off(tier.write))};
}

// The node's tiers, the faster one first.
void AppendTiers(const v1::NodeStatus& node, StyledLines& lines) {
  const v1::StorageCost& cost = node.storage_cost();
  const v1::NodeLoad& load = node.load();
  const int64_t host_hits = node.counters().host_memory().blocks_read();
  const int64_t disk_hits = node.counters().disk().blocks_read();
  if (cost.in_memory() || cost.has_host_read()) {
    lines.push_back(TierLine(node, {"memory", load.blocks_in_host_memory(), host_hits,
                                    cost.in_memory() ? cost.read() : cost.host_read(),
                                    cost.in_memory() ? cost.write() : cost.host_write()}));
  }
  if (!cost.in_memory())
    lines.push_back(
        TierLine(node, {"disk", load.blocks_on_disk(), disk_hits, cost.read(), cost.write()}));
}

void AppendStorage(const v1::GetStatusResponse& status, StyledLines& lines) {
  bool first = true;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (!node.has_storage_cost()) continue;
    if (first) {
      lines.push_back({""});
      lines.push_back(Heading(absl::StrFormat(kStorageRow, "STORAGE OF", "IN", "BLOCKS", "HITS",
                                              "READS", "ERROR", "WRITES", "ERROR")));
    }
    first = false;
    AppendTiers(node, lines);
  }
}

}  // namespace

std::string RequestTotals(const v1::RouterStatus& router) {
  return absl::StrFormat("requests: %s running, %s queued, %s finished, %s failed, %s refused",
                         Count(router.requests_running()), Count(router.requests_queued()),
                         Count(router.requests_finished()), Count(router.requests_failed()),
                         Count(router.requests_refused()));
}

StyledLines StatusLines(const v1::GetStatusResponse& status) {
  StyledLines lines;
  lines.push_back(
      {Cut(absl::StrFormat("router %s, version %s, up %s, %s blocks in the prefix index",
                           status.router_id(), status.version(), ShortAge(status.uptime_s()),
                           Count(status.router().index_blocks())),
           kTableColumns)});
  lines.push_back({Cut(RequestTotals(status.router()), kTableColumns)});
  lines.push_back({""});
  if (status.nodes().empty()) {
    lines.push_back({"no node has joined", Style::kHot});
    return lines;
  }
  lines.push_back(Heading(absl::StrFormat(kNodeRow, "NODE", "ROLE", "RUN", "WAIT", "USED", "CACHE",
                                          "BLOCKS", "TOKENS", "STATE")));
  for (const v1::NodeStatus& node : status.nodes()) lines.push_back(NodeLine(node));
  if (!status.links().empty()) {
    lines.push_back({""});
    lines.push_back(Heading(absl::StrFormat(kPairRow, "KV FROM", "TO", "OVER", "SENT", "BYTES",
                                            "LAST", "RATE", "ERROR")));
    for (const v1::NodePairStatus& pair : status.links()) lines.push_back(PairLine(pair));
  }
  AppendSteps(status, lines);
  AppendStorage(status, lines);
  return lines;
}

StyledLines RequestLines(const v1::ListRequestsResponse& requests, int columns) {
  const int name_columns = 22 + std::max(columns - kTableColumns, 0);
  StyledLines lines = {Heading(absl::StrFormat(kRequestRow, Fit("REQUEST", name_columns), "STATE",
                                               "AGE", "PROMPT", "OUTPUT", "PREFILL", "DECODE"))};
  for (const v1::RunningRequest& request : requests.requests()) {
    std::string decode = request.decode_node().empty() ? "-" : Fit(request.decode_node(), 10);
    if (request.sequences() > 1) absl::StrAppend(&decode, " x", Count(request.sequences()));
    if (request.attempts() > 1) absl::StrAppend(&decode, " try ", Count(request.attempts()));
    if (!request.service_tier().empty() && request.service_tier() != router::kDefaultTier)
      absl::StrAppend(&decode, " ", absl::CHexEscape(request.service_tier()));
    const std::string row = absl::StrFormat(
        kRequestRow, Fit(request.request_id(), name_columns), Fit(request.state(), 10),
        ShortAge(request.age_s()), Count(request.prompt_tokens()), Count(request.output_tokens()),
        request.prefill_node().empty() ? "-" : Fit(request.prefill_node(), 10), decode);
    lines.push_back({Cut(row, columns), request.attempts() > 1 ? Style::kHot : Style::kPlain});
  }
  return lines;
}

}  // namespace tandem::cli
