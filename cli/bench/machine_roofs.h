// Measures the most that this machine allows: the roofs that benchmarks print their figures under.
// Thread safety: one thread.
#pragma once

#include "absl/functional/function_ref.h"
#include "common/engine/compute_pool.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// The rates of all compute threads together.
struct MachineRoofs {
  double flops = 0;                   // operations a second of products with fp32 or bf16 weights
  double int8_flops = 0;              // of products with int8 weights
  double bytes_per_second = 0;        // read from memory, in order
  double cache_bytes_per_second = 0;  // read from the cores' own caches
};

MachineRoofs MeasureRoofs(const kernels::Backend& backend, ComputePool& pool);

// The time that `work` takes.
double SecondsOf(absl::FunctionRef<void()> work);

}  // namespace tandem::engine
