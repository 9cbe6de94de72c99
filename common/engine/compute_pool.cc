#include "common/engine/compute_pool.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/runtime/processors.h"
#include "common/telemetry/log.h"
#include "kernels/api/task_range.h"

namespace tandem::engine {
namespace {

// Polls before a worker sleeps: about 50 µs, several times the longest gap between two forks of a
// step.
constexpr int kSpin = 2000;
// The most units of a job. In a job with more tasks, a unit is several tasks, claimed together.
constexpr uint32_t kUnitsMax = 0xffff;
// Polls before the caller yields its processor, in case a worker that the system has preempted
// waits for it.
constexpr int kSpinBeforeYield = 2000;

// Packs a range into a word: job, first unit, end.
uint64_t RangeOf(uint64_t job, uint64_t begin, uint64_t end) {
  return job << 32 | begin << 16 | end;
}
uint64_t JobOf(uint64_t range) { return range >> 32; }
uint32_t BeginOf(uint64_t range) { return static_cast<uint32_t>(range >> 16) & 0xffff; }
uint32_t EndOf(uint64_t range) { return static_cast<uint32_t>(range) & 0xffff; }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ComputePool::ComputePool(int num_threads, const std::vector<int32_t>& processors)
    : num_threads_(num_threads), ranges_(static_cast<size_t>(std::max(num_threads, 1))) {
  TANDEM_CHECK(num_threads >= 1, "compute threads ", num_threads);
  TANDEM_CHECK(processors.empty() || processors.size() == static_cast<size_t>(num_threads),
               processors.size(), " processors for ", num_threads, " threads");
  for (int worker = 1; worker < num_threads; ++worker) {
    const std::optional<int32_t> processor =
        processors.empty() ? std::nullopt
                           : std::make_optional(processors[static_cast<size_t>(worker)]);
    threads_.emplace_back(absl::StrCat("compute-", worker), [this, worker, processor] {
      if (processor.has_value()) KeepThisThreadOn(*processor);
      WorkerLoop(worker);
    });
  }
}

ComputePool::~ComputePool() {
  stopping_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
}

void KeepThisThreadOn(int32_t processor) {
  const absl::Status status = PinCallingThread({processor});
  if (status.ok()) return;
  Log(LogLevel::kWarning, "cannot pin a compute thread, so it runs on any processor",
      {{"why", status.ToString()}});
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
  const uint32_t unit_tasks = (num_tasks - 1) / kUnitsMax + 1;
  const uint32_t units = (num_tasks - 1) / unit_tasks + 1;
  body_.store(body, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_tasks_.store(num_tasks, std::memory_order_relaxed);
  unit_tasks_.store(unit_tasks, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  ++jobs_;
  for (int worker = 0; worker < num_threads_; ++worker) {
    const auto first = static_cast<uint64_t>(kernels::FirstTask(units, worker, num_threads_));
    const auto end = static_cast<uint64_t>(kernels::FirstTask(units, worker + 1, num_threads_));
    ranges_[static_cast<size_t>(worker)].units.store(RangeOf(jobs_, first, end),
                                                     std::memory_order_release);
  }
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

bool ComputePool::Take(Range* own, Claim* claim) {
  uint64_t seen = own->units.load(std::memory_order_acquire);
  while (true) {
    const uint32_t begin = BeginOf(seen), unit_tasks = unit_tasks_.load(std::memory_order_relaxed);
    if (begin == EndOf(seen)) return false;
    claim->body = body_.load(std::memory_order_relaxed);
    claim->context = context_.load(std::memory_order_relaxed);
    claim->first_task = begin * unit_tasks;
    const uint32_t behind = num_tasks_.load(std::memory_order_relaxed) - claim->first_task;
    claim->end_task = claim->first_task + std::min(unit_tasks, behind);
    // Success proves that the fields read above belong to the job of `seen`: they change only after
    // its last task is claimed.
    if (own->units.compare_exchange_weak(seen, RangeOf(JobOf(seen), begin + 1, EndOf(seen)),
                                         std::memory_order_acq_rel, std::memory_order_acquire)) {
      return true;
    }
  }
}

bool ComputePool::Steal(Range* own, Range* other) {
  const uint64_t mine = own->units.load(std::memory_order_acquire);
  if (BeginOf(mine) != EndOf(mine)) return true;  // a new job began meanwhile
  uint64_t seen = other->units.load(std::memory_order_acquire);
  while (true) {
    const uint32_t begin = BeginOf(seen), end = EndOf(seen), middle = begin + (end - begin) / 2;
    // `other` works on another job: that job's owner writes, or has written, this worker's range.
    if (begin == end || JobOf(seen) != JobOf(mine)) return false;
    if (other->units.compare_exchange_weak(seen, RangeOf(JobOf(seen), begin, middle),
                                           std::memory_order_acq_rel, std::memory_order_acquire)) {
      // No other worker writes an empty range before its job ends, and the job's end waits for
      // these units.
      own->units.store(RangeOf(JobOf(mine), middle, end), std::memory_order_release);
      return true;
    }
  }
}

bool ComputePool::StealFromAny(int worker) {
  const size_t own = static_cast<size_t>(worker);
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (Steal(&ranges_[own], &ranges_[(own + i) % ranges_.size()])) return true;
  }
  return false;
}

void ComputePool::RunTasks(int worker) {
  // Report once, at the end of the job. If each worker reported each task, the shared word would
  // move between their caches every time. No other job can begin before this report.
  uint32_t done = 0;
  do {
    Claim claim;
    while (Take(&ranges_[static_cast<size_t>(worker)], &claim)) {
      for (uint32_t task = claim.first_task; task < claim.end_task; ++task) {
        claim.body(claim.context, task, worker);
      }
      done += claim.end_task - claim.first_task;
    }
  } while (StealFromAny(worker));
  if (done != 0) finished_.fetch_add(done, std::memory_order_release);
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

}  // namespace tandem::engine
