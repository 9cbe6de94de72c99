// How a kernel reaches the caller's threads: a view of a function that runs numbered tasks.
// Which worker runs a task, and in which order, never changes a result bit.
// Thread safety: a value; one call at a time for each pool, as the pool says.
#pragma once

#include <cstdint>

namespace tandem::kernels {

struct ParallelFor {
  // Runs body(context, task, worker) once for each task in [0, num_tasks), with worker in
  // [0, num_workers) and no two tasks of one worker at once; returns when all are done.
  using Body = void (*)(const void* context, int64_t task, int worker);
  using Run = void (*)(void* pool, int64_t num_tasks, Body body, const void* context);

  Run run = nullptr;  // nullptr: the calling thread runs every task, as worker 0
  void* pool = nullptr;
  int num_workers = 1;

  // fn(int64_t task, int worker).
  template <typename Fn>
  void operator()(int64_t num_tasks, const Fn& fn) const {
    if (run == nullptr || num_tasks == 1) {
      for (int64_t task = 0; task < num_tasks; ++task) fn(task, 0);
      return;
    }
    run(
        pool, num_tasks,
        [](const void* context, int64_t task, int worker) {
          (*static_cast<const Fn*>(context))(task, worker);
        },
        &fn);
  }
};

}  // namespace tandem::kernels
