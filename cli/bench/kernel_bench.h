// Measures the CPU kernels one by one in the shapes of a model, and beside each the roof that
// arithmetic and bandwidth measured in the same run allow. Thread safety: one thread. Owner:
// `tandem bench kernels`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/machine_roofs.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

struct KernelResult {
  std::string operation;  // "gemm qkv", "attention", "rms_norm", "sample"
  std::string shape;      // "512 x 960 x 576"
  std::string weights;    // the packed type of a product's weights; empty for other operators
  double micros = 0;      // median of one call
  double roof_micros = 0;
  double flops = 0;   // of one call; 0 where bytes alone count
  double bytes = 0;   // that one call must read and write
  std::string bound;  // "FLOPs", "memory" or "cache"
};

struct KernelReport {
  std::string numerics;
  std::string weights;
  std::string kv_type;
  MachineRoofs roofs;
  std::vector<KernelResult> results;
};

// Each operator is measured for about `time_each`, with options.threads threads; a sampled token
// with one, as in the engine. Weights are of the types that an engine with these options keeps: a
// projection that layers keep in several types is measured in each.
// Errors: those of NewCpuEngine for its options.
absl::StatusOr<KernelReport> BenchKernels(const model::Checkpoint& checkpoint,
                                          const CpuEngineOptions& options,
                                          absl::Duration time_each);

}  // namespace tandem::engine
