// What gpu_bench measured: a line for each result as it comes, and JSON for fill_table.py.
// Thread safety: one thread at a time. Owner: the benchmark.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/api/device.h"
#include "nlohmann/json.hpp"

namespace tandem::kernels {

// Results in the order in which they came.
class Results {
 public:
  struct Row {
    std::string name;
    double ms = 0;
    double bytes = 0;       // that the work must move; 0: the rate is of operations
    double operations = 0;  // 0: the rate is of bytes
    std::string note;
  };
  // `copy_bytes_per_ms`: 0 while it is unknown.
  void Add(const Row& row, double copy_bytes_per_ms) {
    nlohmann::json json = {{"name", row.name}, {"us", row.ms * 1e3}};
    std::printf("%-36s %9.1f us", row.name.c_str(), row.ms * 1e3);
    if (row.operations > 0) {
      json["tflops"] = row.operations / row.ms / 1e9;
      std::printf("  %7.1f TFLOP/s", row.operations / row.ms / 1e9);
    }
    if (row.bytes > 0) {
      json["gbs"] = row.bytes / row.ms / 1e6;
      std::printf("  %6.0f GB/s", row.bytes / row.ms / 1e6);
    }
    if (row.bytes > 0 && copy_bytes_per_ms > 0) {
      json["of_copy"] = 100 * row.bytes / row.ms / copy_bytes_per_ms;
      std::printf("  %3.0f %% of copy", 100 * row.bytes / row.ms / copy_bytes_per_ms);
    }
    std::printf("%s%s\n", row.note.empty() ? "" : "  ", row.note.c_str());
    rows_.push_back(std::move(json));
  }
  // Writes all rows to a new file at `path`, so that a run that is cut off leaves what it found.
  // Returns whether that succeeded.
  bool Write(const char* path, const DeviceProperties& device, const char* kernels) const {
    const nlohmann::json all = {{"device", device.name},
                                {"software", device.software},
                                {"kernels", kernels},
                                {"rows", rows_}};
    std::ofstream file(path, std::ios::trunc);
    file << all.dump(1) << "\n";
    return static_cast<bool>(file.flush());
  }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace tandem::kernels
