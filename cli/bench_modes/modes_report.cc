#include "cli/bench_modes/modes_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/chart.h"
#include "cli/report/distribution_json.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

std::string Nodes(const ModeResult& mode) {
  return mode.prefill == 0 ? absl::StrCat(mode.decode)
                           : absl::StrCat(mode.prefill, "+", mode.decode);
}

int64_t Failed(const LoadSummary& s) { return s.requests - s.answered - s.cancelled; }

// One curve a mode; `values` takes a request's.
template <typename Values>
std::string Curves(const ModesReport& report, const char* title, const Values& values) {
  Chart chart{
      .title = title, .x_label = "milliseconds", .y_label = "share at or below", .series = {}};
  for (const ModeResult& mode : report.modes) {
    std::vector<double> all;
    for (const RequestRecord& record : mode.records)
      if (record.ok()) values(record, all);
    chart.series.push_back(CumulativeShare(mode.name, std::move(all)));
  }
  return DrawChart(chart);
}

}  // namespace

std::string FormatModesTable(const ModesReport& report) {
  std::string text;
  for (const auto& [name, value] : report.settings)
    absl::StrAppendFormat(&text, "%-10s %s\n", name, value);
  absl::StrAppendFormat(&text, "\n%-14s %5s %8s %8s %7s %7s %9s %8s %6s\n", "", "NODES", "TTFT P50",
                        "P99", "ITL P50", "P99", "TOKENS/S", "GOOD/S", "FAILED");
  for (const ModeResult& mode : report.modes) {
    const LoadSummary& s = mode.summary;
    absl::StrAppendFormat(&text, "%-14s %5s %8.1f %8.1f %7.1f %7.1f %9.1f %8.2f %6d\n", mode.name,
                          Nodes(mode), s.ttft.p50, s.ttft.p99, s.itl.p50, s.itl.p99,
                          s.output_tokens_per_second, s.goodput, Failed(s));
  }
  return text;
}

std::string FormatModesJson(const ModesReport& report) {
  router::Json settings = router::Json::object(), modes = router::Json::array();
  for (const auto& [name, value] : report.settings) settings[name] = value;
  for (const ModeResult& mode : report.modes) {
    const LoadSummary& s = mode.summary;
    modes.push_back({{"mode", mode.name},
                     {"prefill_nodes", mode.prefill},
                     {"decode_nodes", mode.decode},
                     {"requests", s.requests},
                     {"answered", s.answered},
                     {"failed", Failed(s)},
                     {"ttft_ms", ToJson(s.ttft)},
                     {"itl_ms", ToJson(s.itl)},
                     {"e2e_ms", ToJson(s.e2e)},
                     {"output_tokens_per_second", s.output_tokens_per_second},
                     {"goodput", s.goodput},
                     {"good_share", s.good_share}});
  }
  return router::JsonText({{"settings", std::move(settings)}, {"modes", std::move(modes)}}) + "\n";
}

std::string FormatModesHtml(const ModesReport& report) {
  std::string body = "<h1>One load, three ways of serving</h1>\n<table class=\"settings\">\n";
  for (const auto& [name, value] : report.settings) {
    absl::StrAppend(&body, "<tr><td>", XmlEscape(name), "</td><td>", XmlEscape(value),
                    "</td></tr>\n");
  }
  absl::StrAppend(&body,
                  "</table>\n<table>\n<tr><th>way</th><th>nodes</th><th>TTFT p50, ms</th>"
                  "<th>p99</th><th>ITL p50, ms</th><th>p99</th><th>output tokens/s</th>"
                  "<th>good requests/s</th><th>failed</th></tr>\n");
  for (const ModeResult& mode : report.modes) {
    const LoadSummary& s = mode.summary;
    absl::StrAppendFormat(&body,
                          "<tr><td>%s</td><td>%s</td><td>%.1f</td><td>%.1f</td><td>%.1f</td>"
                          "<td>%.1f</td><td>%.1f</td><td>%.2f</td><td>%d</td></tr>\n",
                          XmlEscape(mode.name), Nodes(mode), s.ttft.p50, s.ttft.p99, s.itl.p50,
                          s.itl.p99, s.output_tokens_per_second, s.goodput, Failed(s));
  }
  body += "</table>\n";
  body += Curves(report, "Time to first token",
                 [](const RequestRecord& record, std::vector<double>& all) {
                   if (record.first_token.has_value()) all.push_back(record.ttft_ms());
                 });
  body += Curves(report, "Between tokens of an answer",
                 [](const RequestRecord& record, std::vector<double>& all) {
                   all.insert(all.end(), record.gaps_ms.begin(), record.gaps_ms.end());
                 });
  return ReportPage("tandem bench modes", body);
}

}  // namespace tandem::cli
