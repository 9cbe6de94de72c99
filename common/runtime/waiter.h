// The seam for waiting on purpose: a simulated engine's step, a paced client. State machines never
// wait.
// Thread safety: any thread.
#pragma once

#include "absl/time/time.h"

namespace tandem {

class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns once `duration` has passed.
  virtual void Wait(absl::Duration duration) = 0;
};

// Real time. Never deleted.
Waiter& RealWaiter();

}  // namespace tandem
