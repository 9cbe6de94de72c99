#include "cli/bench/bench_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {

using engine::BenchReport;
using engine::BenchResult;
using engine::KernelReport;
using engine::KernelResult;

std::string ShapeName(const engine::BenchShape& shape) {
  if (!shape.decode) return absl::StrCat("prefill ", shape.tokens);
  return absl::StrCat("decode B=", shape.sequences, " ctx ", shape.context);
}

std::string FormatTable(const BenchReport& report) {
  std::string text = absl::StrFormat(
      "numerics %s\nroofs: %.1f GFLOP/s (int8: %.1f), %.1f GB/s, measured in this run\n\n%-24s "
      "%12s %12s %7s  "
      "%s\n",
      report.numerics_id, report.roofs.flops / 1e9, report.roofs.int8_flops / 1e9,
      report.roofs.bytes_per_second / 1e9, "SHAPE", "TOKENS/S", "ROOF", "RATIO", "BOUND BY");
  for (const BenchResult& result : report.results) {
    absl::StrAppendFormat(&text, "%-24s %12.1f %12.1f %6.1f%%  %s\n", ShapeName(result.shape),
                          result.tokens_per_second, result.roof_tokens_per_second,
                          100 * result.tokens_per_second / result.roof_tokens_per_second,
                          result.bound);
  }
  return text;
}

std::string FormatJson(const BenchReport& report) {
  std::string text = absl::StrFormat(
      "{\"numerics_id\": \"%s\", \"roof_flops\": %.6g, \"roof_int8_flops\": %.6g, "
      "\"roof_bytes_per_second\": %.6g, "
      "\"results\": [",
      report.numerics_id, report.roofs.flops, report.roofs.int8_flops,
      report.roofs.bytes_per_second);
  for (size_t i = 0; i < report.results.size(); ++i) {
    const BenchResult& result = report.results[i];
    absl::StrAppendFormat(
        &text,
        "%s\n  {\"kind\": \"%s\", \"tokens\": %d, \"sequences\": %d, \"context\": %d, "
        "\"tokens_per_second\": %.6g, \"roof_tokens_per_second\": %.6g, \"flops_per_token\": %.6g, "
        "\"bytes_per_token\": %.6g, \"bound\": \"%s\"}",
        i == 0 ? "" : ",", result.shape.decode ? "decode" : "prefill", result.shape.tokens,
        result.shape.sequences, result.shape.context, result.tokens_per_second,
        result.roof_tokens_per_second, result.flops_per_token, result.bytes_per_token,
        result.bound);
  }
  return text + "\n]}\n";
}

std::string FormatTable(const KernelReport& report) {
  std::string text = absl::StrFormat(
      "numerics %s, weights %s, KV %s\nroofs: %.1f GFLOP/s (int8: %.1f), %.1f GB/s from memory, "
      "%.1f GB/s from "
      "cache, measured in this run\n\n%-18s %-34s %-7s %10s %10s %7s  %9s %9s  %s\n",
      report.numerics, report.weights, report.kv_type, report.roofs.flops / 1e9,
      report.roofs.int8_flops / 1e9, report.roofs.bytes_per_second / 1e9,
      report.roofs.cache_bytes_per_second / 1e9, "OPERATION", "SHAPE", "WEIGHTS", "MICROS", "ROOF",
      "RATIO", "GFLOP/S", "GB/S", "BOUND BY");
  for (const KernelResult& result : report.results) {
    absl::StrAppendFormat(&text, "%-18s %-34s %-7s %10.1f %10.1f %6.1f%%  %9.1f %9.1f  %s\n",
                          result.operation, result.shape, result.weights, result.micros,
                          result.roof_micros, 100 * result.roof_micros / result.micros,
                          result.flops / result.micros / 1e3, result.bytes / result.micros / 1e3,
                          result.bound);
  }
  return text;
}

std::string FormatJson(const KernelReport& report) {
  std::string text = absl::StrFormat(
      "{\"numerics\": \"%s\", \"weights\": \"%s\", \"kv_type\": \"%s\", \"roof_flops\": %.6g, "
      "\"roof_int8_flops\": %.6g, "
      "\"roof_bytes_per_second\": %.6g, \"roof_cache_bytes_per_second\": %.6g, \"results\": [",
      report.numerics, report.weights, report.kv_type, report.roofs.flops, report.roofs.int8_flops,
      report.roofs.bytes_per_second, report.roofs.cache_bytes_per_second);
  for (size_t i = 0; i < report.results.size(); ++i) {
    const KernelResult& result = report.results[i];
    absl::StrAppendFormat(&text,
                          "%s\n  {\"operation\": \"%s\", \"shape\": \"%s\", \"weights\": \"%s\", "
                          "\"micros\": %.6g, "
                          "\"roof_micros\": %.6g, \"flops\": %.6g, \"bytes\": %.6g, \"bound\": "
                          "\"%s\"}",
                          i == 0 ? "" : ",", result.operation, result.shape, result.weights,
                          result.micros, result.roof_micros, result.flops, result.bytes,
                          result.bound);
  }
  return text + "\n]}\n";
}

}  // namespace tandem::cli
