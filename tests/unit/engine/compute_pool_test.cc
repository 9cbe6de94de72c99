// Goal: every task of every job runs exactly once, on a worker number no other task holds at that
// moment, and is finished when the call returns; jobs of all sizes, back to back and after sleep.
#include "common/engine/compute_pool.h"

#include <gtest/gtest.h>

#include <atomic>

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

TEST(ComputePool, ComesAndGoesWithoutWork) {
  for (int i = 0; i < 50; ++i) ComputePool pool(3);
  EXPECT_GE(AvailableProcessors(), 1);
}

}  // namespace
}  // namespace tandem::engine
