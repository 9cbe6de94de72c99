#include "cli/bench_serve/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "cli/report/distribution_json.h"
#include "cli/report/foreign_text.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

std::string Row(const char* name, const Distribution& d) {
  if (d.count == 0) return absl::StrFormat("%-22s %10s\n", name, "none");
  return absl::StrFormat("%-22s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, d.mean, d.p50, d.p90,
                         d.p99, d.max);
}

// One of a distribution's figures; "none" where nothing was measured.
std::string Figure(const Distribution& d, double value) {
  return d.count == 0 ? "none" : absl::StrFormat("%.2f", value);
}

// A line for each service tier, if requests named any.
std::string TierRows(absl::Span<const TierSummary> tiers) {
  if (tiers.empty()) return "";
  std::string text = absl::StrFormat("\n%-22s %8s %8s %8s %8s %9s %10s %10s %10s %10s\n",
                                     "SERVICE TIER", "REQUESTS", "ANSWERED", "REFUSED", "FAILED",
                                     "CANCELLED", "TTFT P50", "TTFT P99", "ITL P50", "ITL P99");
  for (const TierSummary& tier : tiers)
    absl::StrAppendFormat(&text, "%-22s %8d %8d %8d %8d %9d %10s %10s %10s %10s\n",
                          OneLine(tier.name), tier.requests, tier.answered, tier.refused,
                          tier.failed, tier.cancelled, Figure(tier.ttft, tier.ttft.p50),
                          Figure(tier.ttft, tier.ttft.p99), Figure(tier.itl, tier.itl.p50),
                          Figure(tier.itl, tier.itl.p99));
  return text;
}

router::Json TiersJson(absl::Span<const TierSummary> tiers) {
  router::Json json = router::Json::object();
  for (const TierSummary& tier : tiers)
    json[tier.name] = {{"requests", tier.requests},   {"answered", tier.answered},
                       {"refused", tier.refused},     {"failed", tier.failed},
                       {"cancelled", tier.cancelled}, {"ttft_ms", ToJson(tier.ttft)},
                       {"itl_ms", ToJson(tier.itl)}};
  return json;
}

std::string ObjectivesText(const Objectives& objectives) {
  std::string text;
  const auto add = [&text](const char* name, double ms) {
    if (ms > 0) absl::StrAppend(&text, text.empty() ? "" : ", ", name, " <= ", ms, " ms");
  };
  add("TTFT", objectives.ttft_ms);
  add("p99 ITL", objectives.itl_ms);
  add("end to end", objectives.e2e_ms);
  return text;
}

std::string CsvText(absl::string_view text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace

std::string LatencyNote(bool open_loop) {
  return open_loop ? "Open loop: latencies count from the moment a request was due, sent late or "
                     "not (no coordinated omission)."
                   : "Closed loop: latencies count from the moment a request was sent; a slow "
                     "server slows the load down.";
}

std::string FormatLoadTable(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  std::string text;
  for (const auto& [name, value] : report.settings) {
    absl::StrAppendFormat(&text, "%-14s %s\n", name, OneLine(value));
  }
  absl::StrAppend(&text, LatencyNote(report.open_loop), "\n",
                  report.interrupted ? "Interrupted: the result so far.\n" : "", "\n");
  absl::StrAppendFormat(&text, "%-22s %10s %10s %10s %10s %10s\n", "MILLISECONDS", "MEAN", "P50",
                        "P90", "P99", "MAX");
  absl::StrAppend(&text, Row("first token (TTFT)", s.ttft), Row("between parts (ITL)", s.itl),
                  Row("each token (TPOT)", s.tpot), Row("end to end", s.e2e),
                  report.open_loop ? Row("sent late by", s.lateness) : "", TierRows(s.tiers));
  absl::StrAppendFormat(&text,
                        "\nrequests       %d in %.2f s: %d answered, %d failed, %d cancelled; %.2f "
                        "answered/s\n",
                        s.requests, s.seconds, s.answered, s.requests - s.answered - s.cancelled,
                        s.cancelled, s.requests_per_second);
  absl::StrAppendFormat(&text,
                        "tokens         %d prompt (%d cached), %d output; %.1f output/s, %.1f/s in "
                        "all\n",
                        s.prompt_tokens, s.cached_tokens, s.output_tokens,
                        s.output_tokens_per_second, s.tokens_per_second);
  if (s.objectives.any()) {
    absl::StrAppendFormat(&text, "goodput        %.2f/s, %.1f%% within %s\n", s.goodput,
                          100 * s.good_share, ObjectivesText(s.objectives));
  }
  for (const auto& [kind, count] : s.errors) {
    absl::StrAppendFormat(&text, "error          %d x %s: %s\n", count, OneLine(kind),
                          OneLine(s.error_messages.at(kind)));
  }
  return text;
}

std::string FormatLoadJson(const LoadReport& report) {
  const LoadSummary& s = report.summary;
  router::Json settings = router::Json::object(), errors = router::Json::object();
  for (const auto& [name, value] : report.settings) settings[name] = value;
  for (const auto& [kind, count] : s.errors) {
    errors[kind] = {{"count", count}, {"first_message", s.error_messages.at(kind)}};
  }
  router::Json summary = {{"duration_s", s.seconds},
                          {"requests", s.requests},
                          {"answered", s.answered},
                          {"failed", s.requests - s.answered - s.cancelled},
                          {"cancelled", s.cancelled},
                          {"errors", std::move(errors)},
                          {"prompt_tokens", s.prompt_tokens},
                          {"cached_tokens", s.cached_tokens},
                          {"output_tokens", s.output_tokens},
                          {"requests_per_second", s.requests_per_second},
                          {"output_tokens_per_second", s.output_tokens_per_second},
                          {"tokens_per_second", s.tokens_per_second},
                          {"ttft_ms", ToJson(s.ttft)},
                          {"itl_ms", ToJson(s.itl)},
                          {"tpot_ms", ToJson(s.tpot)},
                          {"e2e_ms", ToJson(s.e2e)},
                          {"lateness_ms", ToJson(s.lateness)}};
  if (!s.tiers.empty()) summary["service_tiers"] = TiersJson(s.tiers);
  if (s.objectives.any()) {
    summary["goodput"] = {
        {"slo_ttft_ms", s.objectives.ttft_ms}, {"slo_itl_ms", s.objectives.itl_ms},
        {"slo_e2e_ms", s.objectives.e2e_ms},   {"good", s.good},
        {"good_share", s.good_share},          {"requests_per_second", s.goodput}};
  }
  return router::JsonText({{"settings", std::move(settings)},
                           {"open_loop", report.open_loop},
                           {"interrupted", report.interrupted},
                           {"summary", std::move(summary)}}) +
         "\n";
}

std::string FormatLoadCsv(absl::Span<const RequestRecord> records) {
  std::string csv =
      "index,intended_s,sent_s,ttft_ms,e2e_ms,tpot_ms,itl_max_ms,prompt_tokens,cached_tokens,"
      "output_tokens,outcome,message,service_tier\n";
  for (const RequestRecord& record : records) {
    absl::StrAppendFormat(&csv, "%d,%.6f,%.6f,", record.index,
                          absl::ToDoubleSeconds(record.intended),
                          absl::ToDoubleSeconds(record.sent));
    if (record.first_token.has_value()) absl::StrAppendFormat(&csv, "%.3f", record.ttft_ms());
    absl::StrAppendFormat(&csv, ",%.3f,", record.e2e_ms());
    if (record.tpot_ms().has_value()) absl::StrAppendFormat(&csv, "%.3f", *record.tpot_ms());
    csv += ",";
    if (!record.gaps_ms.empty()) {
      absl::StrAppendFormat(&csv, "%.3f",
                            *std::max_element(record.gaps_ms.begin(), record.gaps_ms.end()));
    }
    absl::StrAppendFormat(&csv, ",%d,%d,%d,%s,%s,%s\n", record.prompt_tokens, record.cached_tokens,
                          record.output_tokens,
                          record.cancelled ? "cancelled"
                          : record.ok()    ? "ok"
                                           : CsvText(record.error),
                          CsvText(record.message), CsvText(record.service_tier));
  }
  return csv;
}

}  // namespace tandem::cli
