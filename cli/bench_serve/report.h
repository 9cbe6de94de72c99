// The results of a load as a table, as JSON, as CSV and as one HTML page with charts.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cli/report/statistics.h"

namespace tandem::cli {

struct LoadReport {
  // What was run, as it is shown: ("rate", "20 requests/s, poisson").
  std::vector<std::pair<std::string, std::string>> settings;
  bool open_loop = false;
  bool interrupted = false;  // ended by a signal
  LoadSummary summary;
  std::vector<RequestRecord> records;
};

// For a terminal.
std::string FormatLoadTable(const LoadReport& report);
// One object: "settings", "summary".
std::string FormatLoadJson(const LoadReport& report);
// A header, and a line for every request.
std::string FormatLoadCsv(absl::Span<const RequestRecord> records);
// One page that loads nothing else: settings, results, latency distributions, times to first token
// and throughput over time. It is well-formed XML too.
std::string FormatLoadHtml(const LoadReport& report);

// From where latencies count, in words.
std::string LatencyNote(bool open_loop);

}  // namespace tandem::cli
