// What a process does while it starts, such as loading a model, cannot be interrupted and may be
// thrown away: a stop signal then ends the process at once, instead of after the start.
// Thread safety: the main thread makes and ends it. Owner: the main function, for its start.
#pragma once

#include "common/runtime/stop_signal.h"
#include "common/runtime/thread.h"

namespace tandem::config {

// While it lives, the first stop signal ends the process with kExitOk, as a drain without work
// does. No destructor runs.
class StartGuard {
 public:
  // `stop` outlives the guard, whose thread alone looks at it meanwhile.
  explicit StartGuard(const StopSignal& stop);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void Watch(int stop_fd);

  const int over_fd_;  // an eventfd, readable once the start is over
  Thread thread_;
};

}  // namespace tandem::config
