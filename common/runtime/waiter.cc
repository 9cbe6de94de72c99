#include "common/runtime/waiter.h"

#include "absl/synchronization/mutex.h"
#include "common/base/steady_cond_var.h"

namespace tandem {
namespace {

class TimedWaiter : public Waiter {
 public:
  void Wait(absl::Duration duration) override {
    if (duration <= absl::ZeroDuration()) return;
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    SteadyCondVar never;
    never.WaitFor(&mutex, duration, [] { return false; });
  }
};

}  // namespace

Waiter& RealWaiter() {
  static TimedWaiter* const waiter = new TimedWaiter;
  return *waiter;
}

}  // namespace tandem
