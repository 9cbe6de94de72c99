// Tells how far the loading of a checkpoint's weights is.
// Thread safety: see each member. Owner: the engine that loads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

struct LoadProgress {
  absl::string_view stage;    // "checking" a file of packed weights, "packing", "storing"
  int64_t done = 0, all = 0;  // tasks of the stage
};
// Called by any compute thread after each task. It may not wait.
using OnLoadProgress = std::function<void(const LoadProgress&)>;

// The threads that load weights, and who hears how far they are.
struct LoadThreads {
  LoadThreads(const kernels::ParallelFor& threads, OnLoadProgress listener = nullptr)
      : parallel(threads), on_progress(std::move(listener)) {}
  kernels::ParallelFor parallel;
  OnLoadProgress on_progress;  // null: no report
};

// One stage of the loading: a ParallelFor that reports each task. It outlives the calls of
// parallel(). Thread safety: as ParallelFor.
class LoadStage {
 public:
  // `threads` outlives this object.
  LoadStage(const LoadThreads& threads, absl::string_view name) : threads_(threads), name_(name) {}
  LoadStage(const LoadStage&) = delete;
  LoadStage& operator=(const LoadStage&) = delete;

  kernels::ParallelFor parallel() {
    if (threads_.on_progress == nullptr) return threads_.parallel;
    return {&Run, this, threads_.parallel.num_workers};
  }

 private:
  static void Run(void* self, int64_t num_tasks, kernels::ParallelFor::Body body,
                  const void* context) {
    auto& stage = *static_cast<LoadStage*>(self);
    std::atomic<int64_t> done = 0;
    stage.threads_.parallel(num_tasks, [&](int64_t task, int worker) {
      body(context, task, worker);
      stage.threads_.on_progress(
          {stage.name_, done.fetch_add(1, std::memory_order_relaxed) + 1, num_tasks});
    });
  }

  const LoadThreads& threads_;
  const absl::string_view name_;
};

}  // namespace tandem::engine
