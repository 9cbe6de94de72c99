// The HTML page of a load's results: implements FormatLoadHtml (cli/bench_serve/report.h).
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench_serve/report.h"
#include "cli/report/chart.h"

namespace tandem::cli {
namespace {

// Columns of the charts over time.
constexpr double kTimeColumns = 60;

std::string LatencyCharts(const LoadReport& report) {
  std::vector<double> ttft, e2e, itl;
  for (const RequestRecord& record : report.records) {
    if (!record.ok()) continue;
    if (record.first_token.has_value()) ttft.push_back(record.ttft_ms());
    e2e.push_back(record.e2e_ms());
    itl.insert(itl.end(), record.gaps_ms.begin(), record.gaps_ms.end());
  }
  const auto chart = [](const char* title, Series series) {
    return DrawChart({.title = title,
                      .x_label = "milliseconds",
                      .y_label = "share at or below",
                      .series = {std::move(series)}});
  };
  return absl::StrCat(chart("Time to first token", CumulativeShare("TTFT", std::move(ttft))),
                      chart("Between parts of an answer", CumulativeShare("ITL", std::move(itl))),
                      chart("End to end", CumulativeShare("end to end", std::move(e2e))));
}

std::string FirstTokensOverTime(const LoadReport& report) {
  Series series = {.name = "TTFT", .points = {}};
  for (const RequestRecord& record : report.records) {
    if (!record.ok() || !record.first_token.has_value()) continue;
    series.points.emplace_back(absl::ToDoubleSeconds(record.intended), record.ttft_ms());
  }
  std::sort(series.points.begin(), series.points.end());
  return DrawChart({.title = "Time to first token, by arrival",
                    .x_label = "seconds into the run",
                    .y_label = "milliseconds",
                    .series = {std::move(series)},
                    .points_only = true});
}

// Answered requests, and their tokens, by when they ended.
std::string ThroughputOverTime(const LoadReport& report) {
  const double width = AxisStep(std::max(report.summary.seconds, 1e-3), kTimeColumns);
  const auto columns = static_cast<size_t>(report.summary.seconds / width) + 1;
  std::vector<double> requests(columns), tokens(columns), failed(columns);
  for (const RequestRecord& record : report.records) {
    const double at = std::max(0.0, absl::ToDoubleSeconds(record.ended) / width);
    const size_t column = std::min(static_cast<size_t>(at), columns - 1);
    requests[column] += record.ok() ? 1 : 0;
    failed[column] += record.ok() || record.cancelled ? 0 : 1;
    tokens[column] += record.ok() ? record.output_tokens : 0;
  }
  const auto series = [&](const char* name, const std::vector<double>& counts) {
    Series one = {.name = name, .points = {}};
    for (size_t i = 0; i < columns; ++i) {
      one.points.emplace_back((static_cast<double>(i) + .5) * width, counts[i] / width);
    }
    return one;
  };
  return absl::StrCat(
      DrawChart({.title = "Requests a second",
                 .x_label = "seconds into the run",
                 .y_label = "by when they ended",
                 .series = {series("answered", requests), series("failed", failed)}}),
      DrawChart({.title = "Output tokens a second",
                 .x_label = "seconds into the run",
                 .y_label = "of requests that ended then",
                 .series = {series("tokens", tokens)}}));
}

std::string ResultRow(const char* name, const Distribution& d) {
  return absl::StrFormat(
      "<tr><td>%s</td><td>%d</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td>"
      "</tr>\n",
      name, d.count, d.mean, d.p50, d.p90, d.p99, d.max);
}

// A cell with one of a distribution's figures; "none" where nothing was measured.
std::string FigureCell(const Distribution& d, double value) {
  return d.count == 0 ? "<td>none</td>" : absl::StrFormat("<td>%.2f</td>", value);
}

// A table of the service tiers, if requests named any.
std::string TierTable(absl::Span<const TierSummary> tiers) {
  if (tiers.empty()) return "";
  std::string rows;
  for (const TierSummary& tier : tiers)
    absl::StrAppendFormat(&rows,
                          "<tr><td>%s</td><td>%d</td><td>%d</td><td>%d</td><td>%d</td>"
                          "<td>%d</td>%s%s%s%s</tr>\n",
                          XmlEscape(tier.name), tier.requests, tier.answered, tier.refused,
                          tier.failed, tier.cancelled, FigureCell(tier.ttft, tier.ttft.p50),
                          FigureCell(tier.ttft, tier.ttft.p99), FigureCell(tier.itl, tier.itl.p50),
                          FigureCell(tier.itl, tier.itl.p99));
  return absl::StrCat(
      "<table>\n<tr><th>service tier</th><th>requests</th><th>answered</th><th>refused</th>"
      "<th>failed</th><th>cancelled</th><th>TTFT p50, ms</th><th>p99</th><th>ITL p50, "
      "ms</th><th>p99</th></tr>\n",
      rows, "</table>\n");
}

std::string Fact(absl::string_view name, absl::string_view value) {
  return absl::StrCat("<tr><td>", XmlEscape(name), "</td><td>", XmlEscape(value), "</td></tr>\n");
}

std::string Facts(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  std::string rows;
  for (const auto& [name, value] : report.settings) rows += Fact(name, value);
  rows += Fact("requests", absl::StrFormat("%d in %.2f s: %d answered, %d failed, %d cancelled",
                                           s.requests, s.seconds, s.answered,
                                           s.requests - s.answered - s.cancelled, s.cancelled));
  rows +=
      Fact("throughput",
           absl::StrFormat("%.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all",
                           s.requests_per_second, s.output_tokens_per_second, s.tokens_per_second));
  rows += Fact("tokens", absl::StrFormat("%d prompt (%d cached), %d output", s.prompt_tokens,
                                         s.cached_tokens, s.output_tokens));
  if (s.objectives.any()) {
    rows += Fact("goodput", absl::StrFormat("%.2f requests/s, %.1f%% of requests", s.goodput,
                                            100 * s.good_share));
  }
  for (const auto& [kind, count] : s.errors) {
    rows += Fact("error", absl::StrCat(count, " x ", kind, ": ", s.error_messages.at(kind)));
  }
  return rows;
}

}  // namespace

std::string FormatLoadHtml(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  const std::string body = absl::StrCat(
      "<h1>Load on a serving cluster</h1>\n<p>", LatencyNote(report.open_loop),
      report.interrupted ? " The run was interrupted: this is the result so far." : "",
      "</p>\n<table class=\"settings\">\n", Facts(report),
      "</table>\n<table>\n<tr><th>milliseconds</th><th>count</th><th>mean</th><th>p50</th>"
      "<th>p90</th><th>p99</th><th>max</th></tr>\n",
      ResultRow("first token (TTFT)", s.ttft), ResultRow("between parts (ITL)", s.itl),
      ResultRow("each token (TPOT)", s.tpot), ResultRow("end to end", s.e2e),
      ResultRow("sent late by", s.lateness), "</table>\n", TierTable(s.tiers),
      LatencyCharts(report), FirstTokensOverTime(report), ThroughputOverTime(report));
  return ReportPage("tandem bench serve", body);
}

}  // namespace tandem::cli
