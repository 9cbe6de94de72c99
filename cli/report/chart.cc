#include "cli/report/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {
namespace {

constexpr double kWidth = 720, kHeight = 300;
constexpr double kLeft = 64, kRight = 16, kTop = 34, kBottom = 46;
constexpr const char* kColours[] = {"#1f6fb4", "#d1495b", "#3a8f5c", "#8a5fb0", "#c98a1b"};

constexpr char kPageStyle[] =
    "body{font:14px sans-serif;margin:2em auto;max-width:1100px;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:3px 12px;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child,.settings td{text-align:left}"
    "svg{width:100%;max-width:720px;display:block;margin:1em 0}";

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart) {
    for (const Series& series : chart.series) {
      for (const auto& [x, y] : series.points) {
        if (!std::isfinite(x) || !std::isfinite(y)) continue;
        x_most_ = std::max(x_most_, x);
        y_most_ = std::max(y_most_, y);
      }
    }
    if (x_most_ <= 0) x_most_ = 1;
    if (y_most_ <= 0) y_most_ = 1;
  }

  std::string Draw() const {
    std::string svg = absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\" font-size=\"11\" role=\"img\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%.0f\" y=\"18\" font-size=\"14\">%s</text>\n",
        kWidth, kHeight, kLeft, XmlEscape(chart_.title));
    AppendAxes(svg);
    for (size_t i = 0; i < chart_.series.size(); ++i) {
      const char* colour = kColours[i % std::size(kColours)];
      AppendSeries(chart_.series[i], colour, svg);
      AppendLegend(i, colour, svg);
    }
    return svg + "</svg>\n";
  }

 private:
  double X(double x) const {
    return kLeft + std::max(x, 0.0) / x_most_ * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    return kHeight - kBottom - std::max(y, 0.0) / y_most_ * (kHeight - kTop - kBottom);
  }

  void AppendAxes(std::string& svg) const {
    const double bottom = Y(0);
    for (double x = 0, step = AxisStep(x_most_, 8); x <= x_most_ * 1.0001; x += step) {
      absl::StrAppendFormat(&svg,
                            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                            "stroke=\"#eee\"/><text x=\"%.1f\" y=\"%.1f\" "
                            "text-anchor=\"middle\">%g</text>\n",
                            X(x), kTop, X(x), bottom, X(x), bottom + 16, x);
    }
    for (double y = 0, step = AxisStep(y_most_, 5); y <= y_most_ * 1.0001; y += step) {
      absl::StrAppendFormat(&svg,
                            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                            "stroke=\"#eee\"/><text x=\"%.1f\" y=\"%.1f\" "
                            "text-anchor=\"end\">%g</text>\n",
                            kLeft, Y(y), kWidth - kRight, Y(y), kLeft - 6, Y(y) + 4, y);
    }
    absl::StrAppendFormat(
        &svg,
        "<polyline fill=\"none\" stroke=\"#444\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n"
        "<text transform=\"translate(14 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
        kLeft, kTop, kLeft, bottom, kWidth - kRight, bottom, (kLeft + kWidth - kRight) / 2,
        kHeight - 10, XmlEscape(chart_.x_label), (kTop + bottom) / 2, XmlEscape(chart_.y_label));
  }

  void AppendSeries(const Series& series, const char* colour, std::string& svg) const {
    const size_t count = series.points.size();
    const size_t stride = std::max<size_t>(1, (count + kPointsMax - 1) / kPointsMax);
    std::string line;
    for (size_t i = 0; i < count; ++i) {
      if (i % stride != 0 && i + 1 != count) continue;
      const auto [x, y] = series.points[i];
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      if (chart_.points_only) {
        absl::StrAppendFormat(&svg,
                              "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"1.8\" fill=\"%s\" "
                              "fill-opacity=\"0.6\"/>\n",
                              X(x), Y(y), colour);
      } else {
        absl::StrAppendFormat(&line, "%s%.1f,%.1f", line.empty() ? "" : " ", X(x), Y(y));
      }
    }
    if (line.empty()) return;
    absl::StrAppendFormat(&svg,
                          "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" "
                          "points=\"%s\"/>\n",
                          colour, line);
  }

  void AppendLegend(size_t index, const char* colour, std::string& svg) const {
    if (chart_.series.size() < 2) return;
    const double x = kWidth - kRight - 110 * static_cast<double>(chart_.series.size() - index);
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.1f\" y=\"9\" width=\"10\" height=\"10\" fill=\"%s\"/>"
                          "<text x=\"%.1f\" y=\"18\">%s</text>\n",
                          x, colour, x + 14, XmlEscape(chart_.series[index].name));
  }

  const Chart& chart_;
  double x_most_ = 0, y_most_ = 0;
};

}  // namespace

std::string DrawChart(const Chart& chart) { return Plot(chart).Draw(); }

std::string XmlEscape(absl::string_view text) {
  // What is not UTF-8 is replaced on the way through a JSON string.
  const std::string quoted = router::JsonText(std::string(text));
  const std::string utf8 = router::Json::parse(quoted).get<std::string>();
  // XML has neither U+FFFE nor U+FFFF.
  const std::string clean = absl::StrReplaceAll(
      utf8, {{"\xEF\xBF\xBE", "\xEF\xBF\xBD"}, {"\xEF\xBF\xBF", "\xEF\xBF\xBD"}});
  std::string escaped;
  for (const char c : clean) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return escaped;
}

double AxisStep(double most, int count) {
  const double raw = most / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

Series CumulativeShare(std::string name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Series series = {.name = std::move(name), .points = {}};
  for (size_t i = 0; i < values.size(); ++i) {
    series.points.emplace_back(values[i],
                               static_cast<double>(i + 1) / static_cast<double>(values.size()));
  }
  return series;
}

std::string ReportPage(absl::string_view title, absl::string_view body) {
  return absl::StrCat("<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"/><title>",
                      XmlEscape(title), "</title><style>", kPageStyle, "</style></head>\n<body>\n",
                      body, "</body>\n</html>\n");
}

}  // namespace tandem::cli
