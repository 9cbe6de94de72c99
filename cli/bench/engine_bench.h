// Measures an engine's speed at given shapes, and beside it the roof: the speed that the arithmetic
// and the memory bandwidth measured in the same run would allow. The engine is the processor's, or
// that of the first CUDA device. Thread safety: one thread. Owner: `tandem bench engine`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/machine_roofs.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/device/device_engine.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

// One shape: a prompt of `tokens` in chunks, or one token each of `sequences` at `context`.
struct BenchShape {
  bool decode = false;
  int64_t tokens = 0;     // prefill
  int64_t sequences = 0;  // decode
  int64_t context = 0;    // decode: tokens before the one computed
};

struct BenchResult {
  BenchShape shape;
  double tokens_per_second = 0;       // median
  double roof_tokens_per_second = 0;  // from the longer of the times for arithmetic and for bytes
  double flops_per_token = 0;
  double bytes_per_token = 0;
  std::string bound;  // what limits the roof: "FLOPs", "weight bytes" or "KV bytes"
};

struct BenchOptions {
  CpuEngineOptions engine;
  std::optional<DeviceEngineOptions> device;  // in place of `engine`: on the first CUDA device
  std::vector<BenchShape> shapes;
  int64_t chunk_tokens = 512;  // rows of a prefill step
  // The time to measure each shape for; at least three runs.
  absl::Duration time_each = absl::Seconds(1);
};

struct BenchReport {
  std::string numerics_id;
  MachineRoofs roofs;
  double product_flops = 0;  // the roof of products with these weights: one of roofs' two
  std::vector<BenchResult> results;
};

// Errors: the engine's; kInvalidArgument for a shape beyond the model's context.
absl::StatusOr<BenchReport> BenchEngine(const model::Checkpoint& checkpoint,
                                        const BenchOptions& options);

}  // namespace tandem::engine
