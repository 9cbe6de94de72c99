#include "cli/bench_chats/chats_report.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/chart.h"
#include "cli/report/distribution_json.h"
#include "cli/report/statistics.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

// The turns of one number.
struct TurnRow {
  int32_t turn = 0;
  int64_t history = 0, fresh = 0, cached = 0;  // tokens, means
  int64_t recomputed = 0;                      // history tokens, in all
  Distribution ttft, alone;
  double ratio() const { return alone.p50 > 0 ? ttft.p50 / alone.p50 : 0; }  // of medians
};

std::vector<TurnRow> RowsOf(const ChatsReport& report) {
  std::map<int32_t, std::vector<const ChatTurn*>> by_turn;
  for (const ChatTurn& turn : report.turns) by_turn[turn.turn].push_back(&turn);
  std::vector<TurnRow> rows;
  for (const auto& [number, turns] : by_turn) {
    TurnRow& row = rows.emplace_back();
    row.turn = number;
    std::vector<double> ttft, alone;
    for (const ChatTurn* turn : turns) {
      row.history += turn->history_tokens;
      row.fresh += turn->new_tokens;
      row.cached += turn->cached_tokens;
      row.recomputed += turn->recomputed_tokens(report.block_tokens);
      ttft.push_back(turn->ttft_ms);
      alone.push_back(turn->alone_ms);
    }
    for (int64_t* sum : {&row.history, &row.fresh, &row.cached}) *sum /= std::ssize(turns);
    row.ttft = Describe(std::move(ttft));
    row.alone = Describe(std::move(alone));
  }
  return rows;
}

int64_t RecomputedInAll(const std::vector<TurnRow>& rows) {
  int64_t tokens = 0;
  for (const TurnRow& row : rows) tokens += row.recomputed;
  return tokens;
}

}  // namespace

std::string FormatChatsTable(const ChatsReport& report) {
  std::string text;
  for (const auto& [name, value] : report.settings)
    absl::StrAppendFormat(&text, "%-10s %s\n", name, value);
  absl::StrAppendFormat(&text, "\n%4s %8s %6s %8s %10s %9s %8s %9s %6s\n", "TURN", "HISTORY", "NEW",
                        "CACHED", "RECOMPUTED", "TTFT P50", "P90", "NEW ALONE", "RATIO");
  for (const TurnRow& row : RowsOf(report))
    absl::StrAppendFormat(&text, "%4d %8d %6d %8d %10d %9.1f %8.1f %9.1f %6.2f\n", row.turn,
                          row.history, row.fresh, row.cached, row.recomputed, row.ttft.p50,
                          row.ttft.p90, row.alone.p50, row.ratio());
  return text;
}

std::string FormatChatsJson(const ChatsReport& report) {
  router::Json settings = router::Json::object(), turns = router::Json::array();
  for (const auto& [name, value] : report.settings) settings[name] = value;
  const std::vector<TurnRow> rows = RowsOf(report);
  for (const TurnRow& row : rows)
    turns.push_back({{"turn", row.turn},
                     {"history_tokens", row.history},
                     {"new_tokens", row.fresh},
                     {"cached_tokens", row.cached},
                     {"recomputed_tokens", row.recomputed},
                     {"ttft_ms", ToJson(row.ttft)},
                     {"alone_ttft_ms", ToJson(row.alone)},
                     {"ratio", row.ratio()}});
  return router::JsonText({{"settings", std::move(settings)},
                           {"turns", std::move(turns)},
                           {"recomputed", RecomputedInAll(rows)}}) +
         "\n";
}

std::string FormatChatsHtml(const ChatsReport& report) {
  std::string body = "<h1>Chats, turn by turn</h1>\n<table class=\"settings\">\n";
  for (const auto& [name, value] : report.settings)
    absl::StrAppend(&body, "<tr><td>", XmlEscape(name), "</td><td>", XmlEscape(value),
                    "</td></tr>\n");
  absl::StrAppend(&body,
                  "</table>\n<table>\n<tr><th>turn</th><th>history, tokens</th><th>new</th>"
                  "<th>cached</th><th>history recomputed</th><th>TTFT p50, ms</th><th>p90</th>"
                  "<th>new tokens alone</th><th>ratio</th></tr>\n");
  Chart chart{.title = "Time to first token, median",
              .x_label = "turn",
              .y_label = "milliseconds",
              .series = {{"the turn", {}}, {"its new tokens alone", {}}}};
  for (const TurnRow& row : RowsOf(report)) {
    absl::StrAppendFormat(&body,
                          "<tr><td>%d</td><td>%d</td><td>%d</td><td>%d</td><td>%d</td><td>%.1f</td>"
                          "<td>%.1f</td><td>%.1f</td><td>%.2f</td></tr>\n",
                          row.turn, row.history, row.fresh, row.cached, row.recomputed,
                          row.ttft.p50, row.ttft.p90, row.alone.p50, row.ratio());
    chart.series[0].points.emplace_back(row.turn, row.ttft.p50);
    chart.series[1].points.emplace_back(row.turn, row.alone.p50);
  }
  absl::StrAppend(&body, "</table>\n", DrawChart(chart));
  return ReportPage("tandem bench chats", body);
}

}  // namespace tandem::cli
