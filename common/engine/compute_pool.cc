#include "common/engine/compute_pool.h"

#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::engine {
namespace {

// Polls before a worker sleeps: about 50 µs, several times the longest gap between two forks of a
// step.
constexpr int kSpin = 2000;
// Polls before the caller gives up its processor to a worker that lost its own.
constexpr int kSpinBeforeYield = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ComputePool::ComputePool(int num_threads) : num_threads_(num_threads) {
  TANDEM_CHECK(num_threads >= 1, "compute threads ", num_threads);
  for (int worker = 1; worker < num_threads; ++worker) {
    threads_.emplace_back(absl::StrCat("compute-", worker), [this, worker] { WorkerLoop(worker); });
  }
}

ComputePool::~ComputePool() {
  stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
}

kernels::ParallelFor ComputePool::parallel() {
  return {num_threads_ == 1 ? nullptr : &ComputePool::Run, this, num_threads_};
}

void ComputePool::Run(void* self, int64_t num_tasks, kernels::ParallelFor::Body body,
                      const void* context) {
  TANDEM_CHECK(num_tasks >= 0 && num_tasks < std::numeric_limits<uint32_t>::max(), num_tasks);
  if (num_tasks == 0) return;
  static_cast<ComputePool*>(self)->RunJob(static_cast<uint32_t>(num_tasks), body, context);
}

void ComputePool::RunJob(uint32_t num_tasks, kernels::ParallelFor::Body body, const void* context) {
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_tasks_.store(num_tasks, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(job << 32 | num_tasks, std::memory_order_release);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  RunTasks(0);
  for (int polls = 0; finished_.load(std::memory_order_acquire) != num_tasks; ++polls) {
    if (polls < kSpinBeforeYield) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ComputePool::RunTasks(int worker) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  // Told once, at the end: a word that all workers write costs a transfer between their caches for
  // each task. No other job can begin before.
  uint32_t done = 0;
  while (true) {
    const auto body = body_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const uint32_t num_tasks = num_tasks_.load(std::memory_order_relaxed);
    const uint32_t left = static_cast<uint32_t>(ticket);
    if (left == 0) {
      if (done != 0) finished_.fetch_add(done, std::memory_order_release);
      return;
    }
    // Success proves that the fields read above belong to the ticket's job: they change only after
    // its last task is claimed.
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    body(context, num_tasks - left, worker);
    ++done;
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

uint32_t ComputePool::AwaitJob(uint32_t seen) const {
  for (int polls = 0; polls < kSpin; ++polls) {
    const uint32_t job = job_.load(std::memory_order_acquire);
    if (job != seen) return job;
    Pause();
  }
  job_.wait(seen, std::memory_order_acquire);
  return job_.load(std::memory_order_acquire);
}

void ComputePool::WorkerLoop(int worker) {
  uint32_t seen = 0;
  while (true) {
    seen = AwaitJob(seen);
    if (stopping_.load()) return;
    RunTasks(worker);
  }
}

int AvailableProcessors() {
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

}  // namespace tandem::engine
