#include "sim/timeline.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::sim {
namespace {

constexpr int kLeft = 110, kRowHeight = 60, kWidth = 1500;

std::string RowName(const SimReport& report, int row) {
  return row < 0 ? "clients" : report.process_names[row];
}

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace

std::string TimelineText(const Schedule& schedule, const SimReport& report) {
  std::string text = absl::StrCat(ToText(schedule), "\n");
  for (const TimelineEntry& entry : report.timeline)
    absl::StrAppendFormat(&text, "%10.3f ms  %-10s  %s\n", static_cast<double>(entry.at_us) / 1e3,
                          RowName(report, entry.row), entry.text);
  if (report.violations.empty()) text += "\nno checker found a violation\n";
  for (const Violation& violation : report.violations)
    absl::StrAppend(&text, "\nVIOLATION at ", violation.at_us, " us, ", violation.checker, ": ",
                    violation.what, "\n");
  return text;
}

std::string TimelineSvg(const Schedule& schedule, const SimReport& report) {
  int64_t end_us = 1;
  for (const TimelineEntry& entry : report.timeline) end_us = std::max(end_us, entry.at_us);
  const auto x = [&](int64_t us) {
    return kLeft + static_cast<double>(us) * (kWidth - kLeft - 20) / static_cast<double>(end_us);
  };
  const auto y = [](int row) { return 40 + (row + 1) * kRowHeight; };
  const int rows = static_cast<int>(report.process_names.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n<text x=\"10\" y=\"16\">seed %d, %.1f ms</text>\n",
      kWidth, y(rows), schedule.seed, static_cast<double>(end_us) / 1e3);
  for (int row = -1; row < rows; ++row)
    absl::StrAppendFormat(&svg,
                          "<text x=\"10\" y=\"%d\">%s</text><line x1=\"%d\" x2=\"%d\" y1=\"%d\" "
                          "y2=\"%d\" stroke=\"#bbb\"/>\n",
                          y(row) + 4, RowName(report, row), kLeft, kWidth - 20, y(row), y(row));
  for (const Fault& fault : schedule.faults)
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"20\" fill=\"#e33\" "
                          "fill-opacity=\"0.25\"><title>%s</title></rect>\n",
                          x(fault.at_us), y(static_cast<int>(fault.target)) - 10,
                          std::max(2.0, x(fault.at_us + fault.lasts_us) - x(fault.at_us)),
                          Escaped(ToText(fault)));
  for (const TimelineEntry& entry : report.timeline) {
    const bool bad =
        absl::StrContains(entry.text, "FAULT") || absl::StrContains(entry.text, "VIOLATION");
    absl::StrAppendFormat(
        &svg,
        "<circle cx=\"%.1f\" cy=\"%d\" r=\"3\" fill=\"%s\"><title>%.3f ms %s</title></circle>\n",
        x(entry.at_us), y(entry.row), bad ? "#d00" : "#27c", static_cast<double>(entry.at_us) / 1e3,
        Escaped(entry.text));
  }
  return svg + "</svg>\n";
}

}  // namespace tandem::sim
