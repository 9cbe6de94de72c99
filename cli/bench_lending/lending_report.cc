#include "cli/bench_lending/lending_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/chart.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

double RatioOf(double value, double of) { return of > 0 ? value / of : 0; }
int64_t FailedOf(const LoadSummary& s) { return s.requests - s.answered - s.cancelled; }
double PoolsOf(const LongestContext& context, const LendingReport& report) {
  return RatioOf(static_cast<double>(context.tokens), static_cast<double>(report.pool_tokens));
}

router::Json GapsJson(const Distribution& d) {
  return {{"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}, {"mean", d.mean}, {"count", d.count}};
}
router::Json LoadJson(const LoadSummary& s) {
  return {{"requests", s.requests},  {"answered", s.answered},
          {"failed", FailedOf(s)},   {"output_tokens_per_second", s.output_tokens_per_second},
          {"e2e_ms_p50", s.e2e.p50}, {"e2e_ms_p99", s.e2e.p99}};
}

std::string ContextChart(const LendingReport& report) {
  Series series{.name = "answered", .points = {}};
  for (const LongestContext& context : report.contexts)
    series.points.emplace_back(context.nodes, PoolsOf(context, report));
  return DrawChart({.title = "Longest prompt",
                    .x_label = "nodes",
                    .y_label = "pools of one node",
                    .series = {std::move(series)}});
}

std::string PlacesChart(const std::vector<KvPlace>& places) {
  Series here{.name = "on its node", .points = {}}, lent{.name = "with creditors", .points = {}};
  for (const KvPlace& place : places) {
    here.points.emplace_back(place.tokens(), place.here_tokens);
    lent.points.emplace_back(place.tokens(), place.lent_tokens);
  }
  return DrawChart({.title = "Where the KV of one answer lies",
                    .x_label = "tokens of context",
                    .y_label = "tokens of KV",
                    .series = {std::move(here), std::move(lent)}});
}

std::string SkewTable(const std::vector<LendingSkew>& skews) {
  std::string text =
      absl::StrFormat("\n%10s %10s %16s %6s %16s %6s %7s\n", "LONG ONES", "SHORT", "ALONE TOKENS/S",
                      "FAILED", "LENDING TOKENS/S", "FAILED", "RATIO");
  for (const LendingSkew& skew : skews) {
    absl::StrAppendFormat(&text, "%10d %10d %16.1f %6d %16.1f %6d %7.2f\n", skew.long_ones,
                          skew.short_ones, skew.alone, skew.alone_failed, skew.lending,
                          skew.lending_failed, RatioOf(skew.lending, skew.alone));
  }
  return text;
}

std::string SkewChart(const LendingReport& report) {
  Series alone{.name = "alone", .points = {}}, lending{.name = "lending", .points = {}};
  for (const LendingSkew& skew : report.skews) {
    alone.points.emplace_back(skew.long_ones, skew.alone);
    lending.points.emplace_back(skew.long_ones, skew.lending);
  }
  return DrawChart({.title = "Throughput beside long requests",
                    .x_label = "nodes with a long request",
                    .y_label = "output tokens/s",
                    .series = {std::move(alone), std::move(lending)}});
}

std::string MixChart(const LendingReport& report) {
  Series alone{.name = "alone", .points = {}}, lending{.name = "lending", .points = {}};
  for (const LendingMix& mix : report.mixes) {
    alone.points.emplace_back(100 * mix.long_share, mix.alone.output_tokens_per_second);
    lending.points.emplace_back(100 * mix.long_share, mix.lending.output_tokens_per_second);
  }
  return DrawChart({.title = "Throughput by mix",
                    .x_label = "long requests, %",
                    .y_label = "output tokens/s",
                    .series = {std::move(alone), std::move(lending)}});
}

}  // namespace

std::string FormatLendingTable(const LendingReport& report) {
  std::string text;
  for (const auto& [name, value] : report.settings)
    absl::StrAppendFormat(&text, "%-10s %s\n", name, value);
  if (!report.contexts.empty()) {
    absl::StrAppendFormat(&text, "\n%5s %15s %16s\n", "NODES", "LONGEST PROMPT", "POOLS OF A NODE");
    for (const LongestContext& context : report.contexts) {
      absl::StrAppendFormat(&text, "%5d %15d %16.2f\n", context.nodes, context.tokens,
                            PoolsOf(context, report));
    }
  }
  if (report.slowdown.has_value()) {
    const LendingSlowdown& s = *report.slowdown;
    absl::StrAppendFormat(&text, "\n%-34s %8s %8s %8s\n",
                          absl::StrCat("GAPS UP TO ", s.context_tokens, " TOKENS, MS"), "P50",
                          "P90", "P99");
    for (const auto& [name, gaps] :
         {std::pair("all KV on one node", s.local), std::pair("partly lent", s.lent)}) {
      absl::StrAppendFormat(&text, "%-34s %8.2f %8.2f %8.2f\n", name, gaps.p50, gaps.p90, gaps.p99);
    }
    absl::StrAppendFormat(&text, "%-34s %8.2f %8.2f %8.2f\n", "ratio",
                          RatioOf(s.lent.p50, s.local.p50), RatioOf(s.lent.p90, s.local.p90),
                          RatioOf(s.lent.p99, s.local.p99));
    if (!s.places.empty()) {
      const KvPlace& last = s.places.back();
      absl::StrAppendFormat(
          &text, "%-34s %7.0f%% of %d tokens\n", "KV with creditors, at the end",
          100 * RatioOf(static_cast<double>(last.lent_tokens), static_cast<double>(last.tokens())),
          last.tokens());
    }
  }
  if (!report.mixes.empty()) {
    absl::StrAppendFormat(&text, "\n%6s %16s %6s %16s %6s %7s\n", "LONG", "ALONE TOKENS/S",
                          "FAILED", "LENDING TOKENS/S", "FAILED", "RATIO");
    for (const LendingMix& mix : report.mixes) {
      absl::StrAppendFormat(
          &text, "%5.1f%% %16.1f %6d %16.1f %6d %7.2f\n", 100 * mix.long_share,
          mix.alone.output_tokens_per_second, FailedOf(mix.alone),
          mix.lending.output_tokens_per_second, FailedOf(mix.lending),
          RatioOf(mix.lending.output_tokens_per_second, mix.alone.output_tokens_per_second));
    }
  }
  if (!report.skews.empty()) text += SkewTable(report.skews);
  return text;
}

std::string FormatLendingJson(const LendingReport& report) {
  router::Json settings = router::Json::object(), contexts = router::Json::array(),
               mixes = router::Json::array(), skews = router::Json::array(), slowdown = nullptr;
  for (const auto& [name, value] : report.settings) settings[name] = value;
  for (const LongestContext& context : report.contexts) {
    contexts.push_back({{"nodes", context.nodes},
                        {"tokens", context.tokens},
                        {"pools", PoolsOf(context, report)}});
  }
  if (report.slowdown.has_value()) {
    const LendingSlowdown& s = *report.slowdown;
    router::Json places = router::Json::array();
    for (const KvPlace& place : s.places)
      places.push_back({{"here_tokens", place.here_tokens}, {"lent_tokens", place.lent_tokens}});
    slowdown = {{"context_tokens", s.context_tokens},
                {"local_gap_ms", GapsJson(s.local)},
                {"lent_gap_ms", GapsJson(s.lent)},
                {"ratio_p50", RatioOf(s.lent.p50, s.local.p50)},
                {"places", std::move(places)}};
  }
  for (const LendingMix& mix : report.mixes) {
    mixes.push_back({{"long_share", mix.long_share},
                     {"alone", LoadJson(mix.alone)},
                     {"lending", LoadJson(mix.lending)}});
  }
  for (const LendingSkew& skew : report.skews) {
    skews.push_back({{"long_ones", skew.long_ones},
                     {"short_ones", skew.short_ones},
                     {"alone_tokens_per_second", skew.alone},
                     {"alone_failed", skew.alone_failed},
                     {"lending_tokens_per_second", skew.lending},
                     {"lending_failed", skew.lending_failed},
                     {"ratio", RatioOf(skew.lending, skew.alone)}});
  }
  return router::JsonText({{"settings", std::move(settings)},
                           {"pool_tokens", report.pool_tokens},
                           {"contexts", std::move(contexts)},
                           {"slowdown", std::move(slowdown)},
                           {"mixes", std::move(mixes)},
                           {"skews", std::move(skews)}}) +
         "\n";
}

std::string FormatLendingHtml(const LendingReport& report) {
  std::string body = absl::StrCat("<h1>What lending KV memory is worth</h1>\n<pre>",
                                  XmlEscape(FormatLendingTable(report)), "</pre>\n");
  if (!report.contexts.empty()) body += ContextChart(report);
  if (report.slowdown.has_value() && !report.slowdown->places.empty())
    body += PlacesChart(report.slowdown->places);
  if (!report.mixes.empty()) body += MixChart(report);
  if (!report.skews.empty()) body += SkewChart(report);
  return ReportPage("tandem bench lending", body);
}

}  // namespace tandem::cli
