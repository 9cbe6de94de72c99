// Counters, gauges and histograms in Prometheus' text format (version 0.0.4). A process registers
// its metric families and series at start; recording is then a relaxed atomic add.
//   MetricRegistry registry;
//   Counter& finished = registry.AddCounter("tandem_requests_total", "Requests.", {{"end", "ok"}});
//   finished.Add(1);
// Thread safety: any thread may record and call Text(). The Add... methods of the registry run
// before other threads use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/string_view.h"

namespace tandem {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void Add(double value) { value_.fetch_add(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double value) { value_.fetch_add(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // `bounds`: the buckets' upper bounds, ascending; an unbounded last bucket is added.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Record(double value);

 private:
  friend class MetricRegistry;
  const std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;  // [bucket], not cumulative
  std::atomic<double> sum_{0};
};

class MetricRegistry {
 public:
  // The returned references stay valid while the registry lives. REQUIRES: each name has one kind
  // and one help text; `labels` are not yet used with that name.
  Counter& AddCounter(absl::string_view name, absl::string_view help, MetricLabels labels = {});
  Gauge& AddGauge(absl::string_view name, absl::string_view help, MetricLabels labels = {});
  Histogram& AddHistogram(absl::string_view name, absl::string_view help,
                          std::vector<double> bounds, MetricLabels labels = {});
  // All families, sorted by name.
  std::string Text() const;

 private:
  struct Series {
    std::string labels;  // `a="b",c="d"`
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    std::string help;
    std::string type;
    std::vector<Series> series;
  };

  Series& AddSeries(absl::string_view name, absl::string_view help, absl::string_view type,
                    const MetricLabels& labels);

  absl::btree_map<std::string, Family> families_;
};

}  // namespace tandem
