// Compiles constraints on a thread of its own, because compiling one may take half a second, and
// the threads that read requests serve many clients. Equal constraints that wait are compiled once.
// Constraints are compiled in the order in which they came.
//
// Thread safety: any thread. `compile` and every `done` run on the queue's thread.
// Owner: the router's server and the node's runtime, which outlive what `done` touches. The
// destructor ends the thread after the constraint that it is compiling; what waits is dropped, and
// its `done` is destroyed uncalled.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "common/request/guided_params.h"
#include "common/runtime/thread.h"

namespace tandem::guided {

class CompileQueue {
 public:
  using Compile = std::function<void(const request::GuidedParams&)>;
  using Done = absl::AnyInvocable<void()>;
  // Different constraints that wait, and all that wait for them.
  static constexpr size_t kConstraintsMax = 64;
  static constexpr size_t kWaitersMax = 8192;

  // `compile` stores its result, or its error, where `done` finds it.
  explicit CompileQueue(Compile compile);
  ~CompileQueue();

  // Calls `done` when `params` were compiled. False, and `done` is untouched, when the queue is
  // full.
  bool Add(const request::GuidedParams& params, Done& done);

 private:
  void Run();
  bool Wakes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !order_.empty(); }

  const Compile compile_;
  absl::Mutex mutex_;
  // Bound: kConstraintsMax.
  std::deque<request::GuidedParams> order_ ABSL_GUARDED_BY(mutex_);
  // Bound: kWaitersMax in all.
  absl::flat_hash_map<request::GuidedParams, std::vector<Done>> waiters_ ABSL_GUARDED_BY(mutex_);
  size_t num_waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace tandem::guided
