// The compute threads of one engine: fork and join for kernels.
//
// A job's tasks are divided into one range for each worker, which takes them in ascending order. So
// a worker's tasks read memory as one stream, and workers share no word while all have work. A
// worker that finishes early takes over the second half of the tasks that another worker still has.
// Between the forks of a step workers spin, because a step has hundreds of forks some microseconds
// apart; after kSpin without work they sleep, so an idle engine costs no CPU time. Thread safety:
// one ParallelFor call at a time, by the thread that owns the pool. Invariants: a job's fields
// change only when every task of the job before is claimed and finished. Owner: the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/runtime/thread.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

class ComputePool {
 public:
  // `num_threads` ≥ 1 counts the calling thread too. `processors` is empty or has one entry for
  // each thread; the pool pins every thread but the caller's to its processor. If the system
  // refuses, the pool logs a warning and the thread runs on any processor.
  explicit ComputePool(int num_threads, const std::vector<int32_t>& processors = {});
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int num_threads() const { return num_threads_; }
  kernels::ParallelFor parallel();

 private:
  static void Run(void* self, int64_t num_tasks, kernels::ParallelFor::Body body,
                  const void* context);
  void RunJob(uint32_t num_tasks, kernels::ParallelFor::Body body, const void* context);
  void WorkerLoop(int worker);
  // Waits until the job number differs from `seen` and returns it.
  uint32_t AwaitJob(uint32_t seen) const;
  // Claims and runs tasks of the current job until none is left.
  void RunTasks(int worker);

  // A worker's remaining tasks: the job's number in the upper half, then 16 bits each for the first
  // unit and the end. A claim is one compare-and-swap, so a late worker can never take a task of
  // another job.
  struct alignas(64) Range {
    std::atomic<uint64_t> units{0};
  };
  struct Claim {
    kernels::ParallelFor::Body body;
    const void* context;
    uint32_t first_task, end_task;
  };
  // Claims the first unit of the worker's range. False: the range is empty.
  bool Take(Range* own, Claim* claim);
  // Moves the second half of the units that `other` has left to the worker's own empty range.
  // False: `other` has none left.
  static bool Steal(Range* own, Range* other);
  // Steals from any worker that has units left. False: no worker has any.
  bool StealFromAny(int worker);

  const int num_threads_;
  // The current job. A worker may rely on what it read here once it has claimed a task of the job.
  std::atomic<kernels::ParallelFor::Body> body_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> num_tasks_{0};
  std::atomic<uint32_t> unit_tasks_{1};  // tasks of a unit
  uint64_t jobs_ = 0;                    // only the owner reads and writes it
  std::vector<Range> ranges_;            // [threads]
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<uint32_t> job_{0};  // workers wait on it
  std::atomic<bool> stopping_{false};
  std::vector<Thread> threads_;
};

// Pins the calling thread to this processor. If the system refuses, logs a warning, and the thread
// runs on any processor.
void KeepThisThreadOn(int32_t processor);

}  // namespace tandem::engine
