// Goal: every task of every job runs exactly once, on a worker number no other task holds at that
// moment, and is finished when the call returns; jobs of all sizes, back to back and after sleep.
// Tasks are shared out as kernels/api/task_range.h says.
#include "common/engine/compute_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "common/runtime/processors.h"

namespace tandem::engine {
namespace {

TEST(ComputePool, RunsEveryTaskOnceAndReturnsWhenDone) {
  for (int threads : {1, 2, 3, 8}) {
    ComputePool pool(threads);
    const kernels::ParallelFor parallel = pool.parallel();
    EXPECT_EQ(parallel.num_workers, threads);
    for (int job = 0; job < 3000; ++job) {
      const int64_t tasks = job * 7 % 23;
      // Plain integers on purpose: the pool alone orders these writes before our reads.
      int runs[23] = {};
      parallel(tasks, [&](int64_t task, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++runs[task];
      });
      for (int64_t task = 0; task < 23; ++task) ASSERT_EQ(runs[task], task < tasks ? 1 : 0);
    }
  }
}

TEST(ComputePool, OneWorkerNumberIsOneThreadAtATime) {
  ComputePool pool(4);
  std::atomic<int> busy[4] = {};
  std::atomic<int> clashes{0};
  pool.parallel()(20000, [&](int64_t, int worker) {
    if (busy[worker].fetch_add(1) != 0) ++clashes;
    busy[worker].fetch_sub(1);
  });
  EXPECT_EQ(clashes.load(), 0);
}

TEST(ComputePool, RunsMoreTasksThanARangeCountsInUnits) {
  for (int threads : {2, 3}) {
    ComputePool pool(threads);
    for (const int64_t tasks : {65534, 65535, 65536, 131071, 200003}) {
      std::vector<uint8_t> runs(static_cast<size_t>(tasks));
      pool.parallel()(tasks, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
      EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), tasks);
    }
  }
}

// The caller's first task waits for its last: unless the other worker takes that one, the job never
// ends.
TEST(ComputePool, TheLastTasksOfAWorkerAreTakenByOthers) {
  ComputePool pool(2);
  for (int job = 0; job < 200; ++job) {
    std::atomic<bool> last_done{false};
    pool.parallel()(16, [&](int64_t task, int) {
      if (task == 7) last_done = true;
      while (task == 0 && !last_done) std::this_thread::yield();
    });
  }
}

// The first tasks of both workers wait for each other, so that each begins with its own range.
TEST(ComputePool, AWorkerBeginsWithItsOwnRange) {
  ComputePool pool(2);
  for (int job = 0; job < 500; ++job) {
    std::atomic<int> begun{0};
    std::vector<int64_t> ran[2];
    pool.parallel()(20, [&](int64_t task, int worker) {
      ran[worker].push_back(task);
      if (task % 10 != 0) return;
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
    ASSERT_FALSE(ran[0].empty() || ran[1].empty());
    EXPECT_EQ(ran[0].front(), 0);
    EXPECT_EQ(ran[1].front(), 10);
  }
}

TEST(ComputePool, ComesAndGoesWithoutWork) {
  for (int i = 0; i < 50; ++i) ComputePool pool(3);
}

TEST(ComputePool, WorkersStayOnTheirProcessors) {
  const Processors mine = ReadProcessors();
  std::vector<int32_t> places = {mine.usable.front().id};
  for (const Processor& processor : mine.usable) places.push_back(processor.id);
  const int threads = static_cast<int>(places.size());
  ComputePool pool(threads, places);
  std::atomic<int> begun{0};
  std::vector<int> ran_on(places.size());
  // Each worker has one task, for each waits until all have begun.
  pool.parallel()(threads, [&](int64_t, int worker) {
    ++begun;
    while (begun < threads) std::this_thread::yield();
    ran_on[static_cast<size_t>(worker)] = sched_getcpu();
  });
  for (size_t worker = 1; worker < places.size(); ++worker) {
    EXPECT_EQ(ran_on[worker], places[worker]);
  }
}

// A processor that no machine has: the pool works all the same.
TEST(ComputePool, AWorkerThatMayNotStayRunsAnywhere) {
  ComputePool pool(2, {0, 8191});
  std::atomic<int> runs{0};
  pool.parallel()(100, [&](int64_t, int) { ++runs; });
  EXPECT_EQ(runs.load(), 100);
}

}  // namespace
}  // namespace tandem::engine
