#include "cli/report/trace_picture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cli/report/chart.h"
#include "cli/report/placement_text.h"
#include "cli/report/source_text.h"
#include "cli/report/statistics.h"

namespace tandem::cli {
namespace {

constexpr int kBarColumns = 48;
// Of the picture.
constexpr double kPictureWidth = 900, kPictureLeft = 110, kPictureRight = 20,
                 kPictureRowHeight = 22, kPictureTop = 60;
constexpr int kTicksMax = 1000;

std::string Ending(const v1::Finished& finished) {
  const std::string name = v1::FinishReason_Name(finished.reason());
  return absl::AsciiStrToLower(absl::StripPrefix(name, "FINISH_REASON_"));
}

std::string Headline(const v1::Finished& finished) {
  const v1::Route& route = finished.route();
  return absl::StrFormat(
      "answer %d: %s; %d prompt tokens (%d cached), %d output; %s%s, %d attempt%s",
      finished.sequence_index(), Ending(finished), finished.usage().prompt_tokens(),
      finished.usage().cached_tokens(), finished.usage().output_tokens(),
      route.prefill_node().empty() ? "" : absl::StrCat(route.prefill_node(), " to "),
      route.decode_node().empty() ? "no node" : route.decode_node(), route.attempts(),
      route.attempts() == 1 ? "" : "s");
}

std::string PrefillText(const v1::Route& route) {
  if (route.prefill_node().empty())
    return absl::StrCat("on ", route.decode_node(), ": ", SourceText(route.decode_tokens()));
  return absl::StrCat(route.prefill_node(), ": ", SourceText(route.prefill_tokens()));
}

std::string InsertText(const v1::Route& route) {
  return absl::StrCat(route.decode_node(), ": ", SourceText(route.decode_tokens()));
}

std::string TransferText(const v1::Route& route) {
  return absl::StrFormat(
      "%.2f MiB over %s: %.2f ms on the wire, %.2f of them behind the prefill, "
      "%.2f beyond both",
      static_cast<double>(route.kv_bytes_moved()) / 1048576, route.transport(),
      route.kv_receive_ms(), route.kv_hidden_ms(), route.kv_beyond_ms());
}

// What the last of several attempts did; nothing of one attempt, whose steps say it.
std::string LastAttemptText(const v1::Route& route) {
  if (route.attempts() <= 1) return "";
  std::string text = absl::StrCat("  last attempt  prefill ", PrefillText(route), "\n");
  if (!route.prefill_node().empty())
    absl::StrAppend(&text, "                insert ", InsertText(route), "\n");
  if (route.kv_bytes_moved() > 0)
    absl::StrAppend(&text, "                transfer ", TransferText(route), "\n");
  return text;
}

// The longest of all sequences: the width of the waterfall.
double TotalMs(const v1::RequestTrace& trace) {
  double total = 0;
  for (const v1::Finished& one : trace.sequences()) {
    total = std::max(total, one.timing().total_ms());
  }
  return total;
}

std::string Bar(const TraceStep& step, double total_ms) {
  std::string bar(kBarColumns, ' ');
  if (total_ms <= 0) return bar;
  const auto column = [&](double ms) {
    return static_cast<int>(std::clamp<double>(ms / total_ms * kBarColumns, 0, kBarColumns));
  };
  const int from = std::min(column(step.from_ms), kBarColumns - 1);
  const int to = std::max(column(step.from_ms + step.ms), from + 1);
  std::fill(bar.begin() + from, bar.begin() + to, '#');
  return bar;
}

std::string GapsText(const v1::Timing& timing) {
  if (timing.gap_ms().empty()) return "";
  const Distribution gaps = Describe({timing.gap_ms().begin(), timing.gap_ms().end()});
  const auto longest = std::max_element(timing.gap_ms().begin(), timing.gap_ms().end());
  std::string text = absl::StrFormat(
      "  gaps        %d between tokens: mean %.2f, p50 %.2f, p90 %.2f, p99 %.2f ms; longest %.2f "
      "ms, number %d",
      gaps.count, gaps.mean, gaps.p50, gaps.p90, gaps.p99, gaps.max,
      longest - timing.gap_ms().begin() + 1);
  if (timing.gaps_dropped() > 0) {
    absl::StrAppend(&text, "; ", timing.gaps_dropped(), " later ones are not kept");
  }
  return text + "\n";
}

// What other nodes kept of the sequence; empty when it had lent nothing.
std::string LentText(const v1::Route& route) {
  if (!route.has_lent()) return "";
  const v1::LentUse& lent = route.lent();
  std::string creditors;
  for (const v1::LentUse::Creditor& creditor : lent.creditors())
    absl::StrAppendFormat(&creditors, "%s%s (%d block%s in %d loan%s)",
                          creditors.empty() ? "" : ", ", creditor.node_id(), creditor.blocks(),
                          creditor.blocks() == 1 ? "" : "s", creditor.loans(),
                          creditor.loans() == 1 ? "" : "s");
  return absl::StrFormat(
      "at most %d tokens at a time, to %s; %d steps waited %.2f ms for creditors; locality %.3f",
      lent.tokens_max(), creditors, lent.steps(), lent.awaited_ms(), lent.locality());
}

// Draws one sequence's rows from `y` on; where the next begin.
double AppendSequence(const v1::Finished& finished, double total_ms, double y, std::string& svg) {
  static constexpr const char* kColours[] = {"#9aa5b1", "#6f86a6", "#1f6fb4",
                                             "#c98a1b", "#3a8f5c", "#8a5fb0"};
  const auto x = [&](double ms) {
    return kPictureLeft +
           (total_ms <= 0 ? 0 : ms / total_ms * (kPictureWidth - kPictureLeft - kPictureRight));
  };
  absl::StrAppendFormat(&svg, "<text x=\"10\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", y + 14,
                        XmlEscape(Headline(finished)));
  y += kPictureRowHeight;
  size_t row = 0;
  for (const TraceStep& step : TraceSteps(finished)) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>"
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"14\" fill=\"%s\">"
                          "<title>%s: %.2f ms from %.2f ms %s</title></rect>\n",
                          kPictureLeft - 8, y + 14, step.name, x(step.from_ms), y + 3,
                          std::max(x(step.from_ms + step.ms) - x(step.from_ms), 1.0),
                          kColours[row++ % std::size(kColours)], step.name, step.ms, step.from_ms,
                          XmlEscape(step.note));
    y += kPictureRowHeight;
  }
  const v1::Timing& timing = finished.timing();
  const int stride = std::max(1, (timing.gap_ms_size() + kTicksMax - 1) / kTicksMax);
  double at = timing.first_token_ms();
  for (int i = 0; i < timing.gap_ms_size(); ++i) {
    at += timing.gap_ms(i);
    if (i % stride != 0) continue;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                          "stroke=\"white\" stroke-width=\"0.8\"/>\n",
                          x(at), y - kPictureRowHeight + 3, x(at), y - kPictureRowHeight + 17);
  }
  if (const std::string lent = LentText(finished.route()); !lent.empty()) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">lent</text>"
                          "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                          kPictureLeft - 8, y + 14, kPictureLeft, y + 14, XmlEscape(lent));
    y += kPictureRowHeight;
  }
  return y + 8;
}

}  // namespace

std::vector<TraceStep> TraceSteps(const v1::Finished& finished) {
  const v1::Timing& timing = finished.timing();
  const v1::Route& route = finished.route();
  // The times up to the first token are those of the attempt that gave it, the route is the last
  // attempt's. Of one attempt they belong together.
  const bool one_attempt = route.attempts() <= 1;
  const auto note = [&](std::string text) { return one_attempt ? std::move(text) : ""; };
  std::vector<TraceStep> steps;
  steps.push_back({"queue", 0, timing.queue_ms(), ""});
  if (timing.reserve_ms() > 0) {
    steps.push_back({"placement", timing.queue_ms(), timing.reserve_ms(),
                     note(absl::StrCat("blocks reserved on ", route.decode_node()))});
  }
  if (timing.first_token_ms() <= 0) return steps;
  steps.push_back({"prefill", timing.first_token_ms() - timing.prefill_ms(), timing.prefill_ms(),
                   note(PrefillText(route))});
  const double installed_ms = timing.first_token_ms() + timing.install_ms();
  if (one_attempt && route.kv_bytes_moved() > 0) {
    steps.push_back({"transfer", std::max(installed_ms - route.kv_transfer_ms(), 0.0),
                     std::min(route.kv_transfer_ms(), installed_ms), TransferText(route)});
  }
  if (timing.install_ms() > 0) {
    steps.push_back(
        {"insert", timing.first_token_ms(), timing.install_ms(), note(InsertText(route))});
  }
  steps.push_back({"decode", timing.first_token_ms(),
                   std::max(timing.total_ms() - timing.first_token_ms(), 0.0),
                   absl::StrCat(finished.usage().output_tokens(), " tokens")});
  return steps;
}

std::string FormatTrace(const v1::RequestTrace& trace) {
  std::string text = absl::StrCat(
      "request ", absl::CHexEscape(trace.request_id()), ", submitted ",
      absl::FormatTime("%Y-%m-%d %H:%M:%E3S UTC",
                       absl::UnixEpoch() + absl::Seconds(trace.submitted_s()), absl::UTCTimeZone()),
      "\n", FormatGoals(trace));
  const double total_ms = TotalMs(trace);
  for (const v1::Finished& finished : trace.sequences()) {
    absl::StrAppend(&text, Headline(finished), "\n");
    absl::StrAppendFormat(&text, "  %-11s %9s %9s\n", "", "AT MS", "TOOK MS");
    for (const TraceStep& step : TraceSteps(finished)) {
      const std::string line =
          absl::StrFormat("  %-11s %9.2f %9.2f  |%s| %s", step.name, step.from_ms, step.ms,
                          Bar(step, total_ms), step.note);
      absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
    }
    absl::StrAppend(&text, GapsText(finished.timing()), LastAttemptText(finished.route()));
    if (const std::string lent = LentText(finished.route()); !lent.empty())
      absl::StrAppendFormat(&text, "  %-11s %s\n", "lent", lent);
    absl::StrAppendFormat(&text, "  first token at %.2f ms, end at %.2f ms\n",
                          finished.timing().first_token_ms(), finished.timing().total_ms());
  }
  if (!trace.error().empty()) absl::StrAppend(&text, "failed: ", trace.error(), "\n");
  return text;
}

std::string DrawTrace(const v1::RequestTrace& trace) {
  const double total_ms = TotalMs(trace);
  std::string rows;
  double y = kPictureTop;
  for (const v1::Finished& finished : trace.sequences()) {
    y = AppendSequence(finished, total_ms, y, rows);
  }
  if (!trace.error().empty()) {
    absl::StrAppendFormat(&rows, "<text x=\"10\" y=\"%.1f\" fill=\"#b00020\">%s</text>\n", y + 14,
                          XmlEscape(trace.error()));
    y += kPictureRowHeight;
  }
  std::string axis;
  const double most = std::max(total_ms, 1e-3), step = AxisStep(most, 8);
  for (double ms = 0; ms <= most * 1.0001; ms += step) {
    const double x = kPictureLeft + ms / most * (kPictureWidth - kPictureLeft - kPictureRight);
    absl::StrAppendFormat(&axis,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g ms</text>\n",
                          x, kPictureTop - 10, x, y, x, kPictureTop - 16, ms);
  }
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"20\" font-size=\"14\">Request %s</text>\n%s%s</svg>\n",
      kPictureWidth, y + 10, XmlEscape(trace.request_id()), axis, rows);
}

}  // namespace tandem::cli
