#include "common/telemetry/metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace tandem {
namespace {

std::string LabelText(const MetricLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&text, text.empty() ? "" : ",", name, "=\"",
                    absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                    "\"");
  }
  return text;
}

void AppendSample(absl::string_view name, absl::string_view labels, double value,
                  std::string& out) {
  out.append(name.data(), name.size());
  if (!labels.empty()) absl::StrAppend(&out, "{", labels, "}");
  absl::StrAppend(&out, " ", absl::StrFormat("%.17g", value), "\n");
}

}  // namespace

void Histogram::Record(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

MetricRegistry::Series& MetricRegistry::AddSeries(absl::string_view name, absl::string_view help,
                                                  absl::string_view type,
                                                  const MetricLabels& labels) {
  Family& family = families_[std::string(name)];
  TANDEM_CHECK(family.series.empty() || (family.type == type && family.help == help));
  family.help = std::string(help);
  family.type = std::string(type);
  family.series.emplace_back().labels = LabelText(labels);
  return family.series.back();
}

Counter& MetricRegistry::AddCounter(absl::string_view name, absl::string_view help,
                                    MetricLabels labels) {
  Series& series = AddSeries(name, help, "counter", labels);
  series.counter = std::make_unique<Counter>();
  return *series.counter;
}

Gauge& MetricRegistry::AddGauge(absl::string_view name, absl::string_view help,
                                MetricLabels labels) {
  Series& series = AddSeries(name, help, "gauge", labels);
  series.gauge = std::make_unique<Gauge>();
  return *series.gauge;
}

Histogram& MetricRegistry::AddHistogram(absl::string_view name, absl::string_view help,
                                        std::vector<double> bounds, MetricLabels labels) {
  Series& series = AddSeries(name, help, "histogram", labels);
  series.histogram = std::make_unique<Histogram>(std::move(bounds));
  return *series.histogram;
}

std::string MetricRegistry::Text() const {
  std::string out;
  for (const auto& [name, family] : families_) {
    absl::StrAppend(&out, "# HELP ", name, " ", family.help, "\n# TYPE ", name, " ", family.type,
                    "\n");
    for (const Series& series : family.series) {
      if (series.counter != nullptr)
        AppendSample(name, series.labels, series.counter->value(), out);
      if (series.gauge != nullptr) AppendSample(name, series.labels, series.gauge->value(), out);
      if (series.histogram == nullptr) continue;
      const Histogram& histogram = *series.histogram;
      const std::string comma = series.labels.empty() ? "" : ",";
      uint64_t total = 0;
      for (size_t i = 0; i < histogram.counts_.size(); ++i) {
        total += histogram.counts_[i].load(std::memory_order_relaxed);
        const std::string bound = i < histogram.bounds_.size()
                                      ? absl::StrFormat("%g", histogram.bounds_[i])
                                      : std::string("+Inf");
        AppendSample(absl::StrCat(name, "_bucket"),
                     absl::StrCat(series.labels, comma, "le=\"", bound, "\""),
                     static_cast<double>(total), out);
      }
      AppendSample(absl::StrCat(name, "_sum"), series.labels,
                   histogram.sum_.load(std::memory_order_relaxed), out);
      AppendSample(absl::StrCat(name, "_count"), series.labels, static_cast<double>(total), out);
    }
  }
  return out;
}

}  // namespace tandem
