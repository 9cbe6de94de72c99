// The tables and JSON that `tandem bench` prints. Thread safety: pure functions.
#pragma once

#include <string>

#include "cli/bench/engine_bench.h"
#include "cli/bench/kernel_bench.h"

namespace tandem::cli {

// "prefill 512", "decode B=8 ctx 2048".
std::string ShapeName(const engine::BenchShape& shape);

std::string FormatTable(const engine::BenchReport& report);
std::string FormatJson(const engine::BenchReport& report);
std::string FormatTable(const engine::KernelReport& report);
std::string FormatJson(const engine::KernelReport& report);

}  // namespace tandem::cli
