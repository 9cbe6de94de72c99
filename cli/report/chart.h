// Line and point charts as SVG text, without scripts: for HTML reports.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by x
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  bool points_only = false;  // dots instead of a line
};

// A whole <svg> element, well-formed XML whatever the texts hold. Axes begin at zero. A series of
// more points than kPointsMax is thinned evenly; values that are not finite are left out.
std::string DrawChart(const Chart& chart);
inline constexpr size_t kPointsMax = 2000;

// For each value, the share of `values` that are at or below it: a chart of a distribution.
Series CumulativeShare(std::string name, std::vector<double> values);

// An HTML page that loads nothing else, around `body`. `title`: plain text.
std::string ReportPage(absl::string_view title, absl::string_view body);

// `text` for XML: & < > and quotes escaped, control characters and bytes that are not UTF-8
// replaced.
std::string XmlEscape(absl::string_view text);

// The step of an axis to `most` with about `count` marks: 1, 2 or 5 times a power of ten.
double AxisStep(double most, int count);

}  // namespace tandem::cli
