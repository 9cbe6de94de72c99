#include "common/runtime/waiter.h"

#include "absl/synchronization/mutex.h"

namespace tandem {
namespace {

class TimedWaiter : public Waiter {
 public:
  void Wait(absl::Duration duration) override {
    if (duration <= absl::ZeroDuration()) return;
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    bool never = false;
    mutex.AwaitWithTimeout(absl::Condition(&never), duration);
  }
};

}  // namespace

Waiter& RealWaiter() {
  static TimedWaiter* const waiter = new TimedWaiter;
  return *waiter;
}

}  // namespace tandem
