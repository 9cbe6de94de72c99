// How the tasks of a ParallelFor call are shared out: worker w runs tasks [FirstTask(n, w),
// FirstTask(n, w + 1)) of n in ascending order, though others may take the last of them. What a
// kernel fetches ahead may count on it, no result may.
#pragma once

#include <cstdint>

namespace tandem::kernels {

inline int64_t FirstTask(int64_t num_tasks, int worker, int num_workers) {
  return num_tasks * worker / num_workers;
}

}  // namespace tandem::kernels
