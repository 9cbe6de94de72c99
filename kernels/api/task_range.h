// How a ParallelFor call divides its tasks: worker w runs tasks [FirstTask(n, w), FirstTask(n, w +
// 1)) of n in ascending order. Other workers may steal the last of them. A kernel may prefetch by
// this rule; no result may depend on it. Thread safety: a pure function.
#pragma once

#include <cstdint>

namespace tandem::kernels {

inline int64_t FirstTask(int64_t num_tasks, int worker, int num_workers) {
  return num_tasks * worker / num_workers;
}

}  // namespace tandem::kernels
