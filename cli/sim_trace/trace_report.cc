#include "cli/sim_trace/trace_report.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/chart.h"
#include "cli/report/foreign_text.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

constexpr double kPercentiles[] = {50, 90, 99, 99.9};

std::string LatencyRow(const char* name, const sim::LatencyHistogram& latency) {
  std::string row = absl::StrFormat("%-22s %10.2f", name, latency.mean_ms());
  for (const double percent : kPercentiles)
    absl::StrAppendFormat(&row, " %10.2f", latency.PercentileMs(percent));
  return absl::StrCat(row, absl::StrFormat(" %10.2f\n", latency.max_ms()));
}

router::Json LatencyJson(const sim::LatencyHistogram& latency) {
  return {{"count", latency.count()},        {"mean", latency.mean_ms()},
          {"p50", latency.PercentileMs(50)}, {"p90", latency.PercentileMs(90)},
          {"p99", latency.PercentileMs(99)}, {"p999", latency.PercentileMs(99.9)},
          {"max", latency.max_ms()}};
}

// Requests a second of the load's time.
double Rate(const TraceReport& report, int64_t requests) {
  const double seconds = report.result.virtual_s;
  return seconds > 0 ? static_cast<double>(requests) / seconds : 0;
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

double HitOfCeiling(const TraceReport& report) {
  return Share(report.result.sources.hits(), report.result.sources.ceiling);
}

std::string RequestsText(const TraceReport& report) {
  const sim::TraceResult& r = report.result;
  return absl::StrFormat("%d in %.1f s%s: %d answered, %d failed, %d refused, %d unfinished",
                         r.requests, r.virtual_s, report.simulated ? " of virtual time" : "",
                         r.answered, r.failed, r.refused, r.unfinished);
}

std::string HitsText(const TraceReport& report) {
  const sim::PromptSources& s = report.result.sources;
  std::string of_all;
  if (report.result.answered < report.result.requests)
    of_all = absl::StrFormat(" (of all requests %.2f %%)", 100 * report.trace.ceiling());
  return absl::StrFormat(
      "%.2f %% of prompt tokens, %.1f %% of the ceiling of %.2f %%%s; %.2f %% in prefill nodes, "
      "%.2f %% in decode nodes",
      100 * report.result.hit(), 100 * HitOfCeiling(report), 100 * report.result.ceiling(), of_all,
      100 * Share(s.prefill_cache, s.prompt), 100 * Share(s.decode_cache, s.prompt));
}

using SourceShare = std::pair<const char*, int64_t>;
std::array<SourceShare, 4> TokensBySource(const sim::PromptSources& s) {
  return {SourceShare{"blocks", s.blocks()}, SourceShare{"host memory", s.host_memory},
          SourceShare{"disk", s.disk}, SourceShare{"other nodes", s.fetched}};
}

// "blocks 30.00 %, host memory 4.00 %, ...": of prompt tokens, and of the ceiling.
std::string SourcesText(const TraceReport& report) {
  const sim::PromptSources& s = report.result.sources;
  std::string of_prompts, of_ceiling;
  for (const auto& [name, tokens] : TokensBySource(s)) {
    absl::StrAppendFormat(&of_prompts, "%s%s %.2f %%", of_prompts.empty() ? "" : ", ", name,
                          100 * Share(tokens, s.prompt));
    absl::StrAppendFormat(&of_ceiling, "%s%.1f", of_ceiling.empty() ? "" : ", ",
                          100 * Share(tokens, s.ceiling));
  }
  return absl::StrCat(of_prompts, "; of the ceiling ", of_ceiling, " %");
}

std::string GoodputText(const TraceReport& report) {
  const sim::TraceObjectives& o = report.objectives;
  std::string limits;
  if (o.ttft > absl::ZeroDuration())
    absl::StrAppend(&limits, "TTFT <= ", absl::FormatDuration(o.ttft));
  if (o.itl > absl::ZeroDuration())
    absl::StrAppend(&limits, limits.empty() ? "" : ", ",
                    "p99 ITL <= ", absl::FormatDuration(o.itl));
  return absl::StrFormat("%.3f requests/s, %.1f %% of all%s", report.result.goodput(),
                         100 * Share(report.result.good, report.result.requests),
                         limits.empty() ? "" : absl::StrCat(", within ", limits));
}

std::string TierText(const TraceReport& report, const sim::TierResult& tier) {
  return absl::StrFormat(
      "%d requests: %d answered, %d refused; in time %.1f %%, %.3f requests/s; TTFT p50 %.0f, p99 "
      "%.0f ms; ITL p50 %.1f, p99 %.1f ms",
      tier.requests, tier.answered, tier.refused, 100 * Share(tier.in_time, tier.requests),
      Rate(report, tier.in_time), tier.ttft.PercentileMs(50), tier.ttft.PercentileMs(99),
      tier.itl.PercentileMs(50), tier.itl.PercentileMs(99));
}

router::Json TiersJson(const TraceReport& report) {
  router::Json tiers = router::Json::object();
  for (const sim::TierResult& tier : report.result.tiers)
    tiers[tier.name] = {{"requests", tier.requests},
                        {"answered", tier.answered},
                        {"refused", tier.refused},
                        {"in_time", tier.in_time},
                        {"in_time_share", Share(tier.in_time, tier.requests)},
                        {"goodput", Rate(report, tier.in_time)},
                        {"ttft_ms", LatencyJson(tier.ttft)},
                        {"itl_ms", LatencyJson(tier.itl)}};
  return tiers;
}

std::string SpeedText(const TraceReport& report) {
  const double wall = std::max(report.wall_s, 1e-9);
  return absl::StrFormat("%d events in %.2f s: %.2f million events/s, %.0f requests a minute",
                         report.result.events, report.wall_s,
                         static_cast<double>(report.result.events) / wall / 1e6,
                         static_cast<double>(report.result.requests) * 60 / wall);
}

// "LRU 12.34 %, ..." of prompt tokens.
std::string PoliciesText(const TraceReport& report) {
  std::string text = absl::StrFormat("of %d blocks:", report.policy_blocks);
  for (const sim::PolicyHits& hits : report.policies)
    absl::StrAppendFormat(&text, "%s %s %.2f %%", &hits == &report.policies.front() ? "" : ",",
                          hits.policy, 100 * Share(hits.hit_tokens, report.trace.prompt_tokens));
  return text;
}

std::vector<std::pair<std::string, std::string>> Facts(const TraceReport& report) {
  std::vector<std::pair<std::string, std::string>> facts = report.settings;
  if (report.interrupted) facts.emplace_back("interrupted", "this is the result so far");
  facts.emplace_back("requests", RequestsText(report));
  facts.emplace_back("hits", HitsText(report));
  facts.emplace_back("hits by source", SourcesText(report));
  if (!report.policies.empty()) facts.emplace_back("one cache", PoliciesText(report));
  facts.emplace_back("max/mean work", report.nodes_error.empty()
                                          ? absl::StrFormat("%.3f", report.result.max_over_mean())
                                          : absl::StrCat("not known: ", report.nodes_error));
  facts.emplace_back("goodput", GoodputText(report));
  for (const sim::TierResult& tier : report.result.tiers)
    facts.emplace_back(tier.name, TierText(report, tier));
  if (report.simulated) facts.emplace_back("simulator", SpeedText(report));
  if (!report.result.first_error.empty())
    facts.emplace_back("first error", report.result.first_error);
  return facts;
}

double BusyShare(const TraceReport& report, const sim::NodeResult& node) {
  return report.result.virtual_s > 0 ? node.busy_s / report.result.virtual_s : 0;
}

std::string LatencyHtmlRow(const char* name, const sim::LatencyHistogram& latency) {
  std::string row = absl::StrFormat("<tr><td>%s</td><td>%.2f</td>", name, latency.mean_ms());
  for (const double percent : kPercentiles)
    absl::StrAppendFormat(&row, "<td>%.2f</td>", latency.PercentileMs(percent));
  return absl::StrCat(row, absl::StrFormat("<td>%.2f</td></tr>\n", latency.max_ms()));
}

// The share of events that took at most so long.
std::string LatencyChart(const char* title, const sim::LatencyHistogram& latency) {
  Series series = {.name = title, .points = {}};
  for (int percent = 0; percent < 100; ++percent)
    series.points.emplace_back(latency.PercentileMs(percent), percent / 100.0);
  return DrawChart({.title = title,
                    .x_label = "milliseconds",
                    .y_label = "share at or below",
                    .series = {std::move(series)}});
}

constexpr char kTraceStyle[] =
    "body{font:14px sans-serif;margin:2em auto;max-width:1100px;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:3px 12px;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child,.facts td{text-align:left}"
    "svg{width:100%;max-width:720px;display:block;margin:1em 0}";

}  // namespace

std::string FormatTraceTable(const TraceReport& report) {
  std::string text;
  for (const auto& [name, value] : Facts(report))
    absl::StrAppendFormat(&text, "%-14s %s\n", OneLine(name), OneLine(value));
  absl::StrAppendFormat(&text, "\n%-22s %10s %10s %10s %10s %10s %10s\n", "MILLISECONDS", "MEAN",
                        "P50", "P90", "P99", "P99.9", "MAX");
  absl::StrAppend(&text, LatencyRow("first token (TTFT)", report.result.ttft),
                  LatencyRow("between tokens (ITL)", report.result.itl),
                  LatencyRow("end to end", report.result.e2e));
  absl::StrAppendFormat(&text, "\n%-16s %8s %10s %14s %14s\n", "NODE", "BUSY %", "STEPS",
                        "PROMPT TOKENS", "GENERATED");
  // Of thousands of nodes the first of each kind say enough; --json has all.
  constexpr size_t kNodesShown = 32;
  for (size_t i = 0; i < std::min(report.result.nodes.size(), kNodesShown); ++i) {
    const sim::NodeResult& node = report.result.nodes[i];
    absl::StrAppendFormat(&text, "%-16s %8.1f %10d %14d %14d\n", OneLine(node.name),
                          100 * BusyShare(report, node), node.steps, node.prompt_tokens,
                          node.generated_tokens);
  }
  if (report.result.nodes.size() > kNodesShown)
    absl::StrAppendFormat(&text, "and %d more\n", report.result.nodes.size() - kNodesShown);
  return text;
}

std::string FormatTraceJson(const TraceReport& report) {
  const sim::TraceResult& r = report.result;
  const sim::PromptSources& s = r.sources;
  router::Json settings = router::Json::object(), nodes = router::Json::array();
  router::Json policies = router::Json::object(), noise = router::Json::array();
  for (const sim::NoiseQuantile& quantile : r.gap_noise)
    noise.push_back({quantile.percent, quantile.factor});
  for (const sim::PolicyHits& hits : report.policies)
    policies[hits.policy] = Share(hits.hit_tokens, report.trace.prompt_tokens);
  for (const auto& [name, value] : report.settings) settings[name] = value;
  for (const sim::NodeResult& node : r.nodes)
    nodes.push_back({{"name", node.name},
                     {"role", node.prefill ? "prefill" : "decode"},
                     {"busy_s", node.busy_s},
                     {"steps", node.steps},
                     {"prompt_tokens", node.prompt_tokens},
                     {"generated_tokens", node.generated_tokens}});
  return router::JsonText({{"settings", std::move(settings)},
                           {"hit", r.hit()},
                           {"ceiling", report.trace.ceiling()},
                           {"hit_of_ceiling", HitOfCeiling(report)},
                           {"hits",
                            {{"prompt_tokens", s.prompt},
                             {"ceiling", s.ceiling},
                             {"prefill_cache", s.prefill_cache},
                             {"decode_cache", s.decode_cache},
                             {"blocks", s.blocks()},
                             {"host_memory", s.host_memory},
                             {"disk", s.disk},
                             {"fetched", s.fetched}}},
                           {"one_cache", {{"blocks", report.policy_blocks}, {"hit", policies}}},
                           {"max_over_mean", r.max_over_mean()},
                           {"ttft_ms", LatencyJson(r.ttft)},
                           {"itl_ms", LatencyJson(r.itl)},
                           {"gap_noise", std::move(noise)},
                           {"e2e_ms", LatencyJson(r.e2e)},
                           {"goodput", r.goodput()},
                           {"good_share", Share(r.good, r.requests)},
                           {"service_tiers", TiersJson(report)},
                           {"requests", r.requests},
                           {"answered", r.answered},
                           {"failed", r.failed},
                           {"refused", r.refused},
                           {"unfinished", r.unfinished},
                           {"first_error", r.first_error},
                           {"output_tokens", r.output_tokens},
                           {"virtual_s", r.virtual_s},
                           {"wall_s", report.wall_s},
                           {"simulated", report.simulated},
                           {"interrupted", report.interrupted},
                           {"events", r.events},
                           {"nodes_error", report.nodes_error},
                           {"nodes", std::move(nodes)}}) +
         "\n";
}

std::string FormatTraceHtml(const TraceReport& report) {
  std::string facts, nodes;
  for (const auto& [name, value] : Facts(report))
    absl::StrAppend(&facts, "<tr><td>", XmlEscape(name), "</td><td>", XmlEscape(value),
                    "</td></tr>\n");
  for (const sim::NodeResult& node : report.result.nodes)
    absl::StrAppendFormat(&nodes,
                          "<tr><td>%s</td><td>%.1f</td><td>%d</td><td>%d</td><td>%d</td></tr>\n",
                          XmlEscape(node.name), 100 * BusyShare(report, node), node.steps,
                          node.prompt_tokens, node.generated_tokens);
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"/><title>tandem ",
      report.simulated ? "sim" : "bench", " trace</title><style>", kTraceStyle,
      "</style></head>\n<body>\n<h1>A trace ",
      report.simulated ? "in virtual time" : "on a cluster", "</h1>\n<table class=\"facts\">\n",
      facts,
      "</table>\n<table>\n<tr><th>milliseconds</th><th>mean</th><th>p50</th><th>p90</th><th>p99"
      "</th><th>p99.9</th><th>max</th></tr>\n",
      LatencyHtmlRow("first token (TTFT)", report.result.ttft),
      LatencyHtmlRow("between tokens (ITL)", report.result.itl),
      LatencyHtmlRow("end to end", report.result.e2e), "</table>\n",
      LatencyChart("Time to first token", report.result.ttft),
      LatencyChart("Between tokens", report.result.itl),
      "<table>\n<tr><th>node</th><th>busy %</th><th>steps</th><th>prompt tokens</th>"
      "<th>generated</th></tr>\n",
      nodes, "</table>\n</body>\n</html>\n");
}

}  // namespace tandem::cli
