// The results of one load under several ways of serving: as a table, as JSON, and as one HTML page
// with charts.
// Thread safety: plain values and pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/report/statistics.h"

namespace tandem::cli {

struct ModeResult {
  std::string name;
  int32_t prefill = 0, decode = 0;  // nodes
  LoadSummary summary;              // over all rounds
  std::vector<RequestRecord> records;
};

struct ModesReport {
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ModeResult> modes;
};

// For a terminal of 80 columns.
std::string FormatModesTable(const ModesReport& report);
// One object: "settings", "modes" (a list).
std::string FormatModesJson(const ModesReport& report);
// It is well-formed XML too.
std::string FormatModesHtml(const ModesReport& report);

}  // namespace tandem::cli
