// The seam for deliberate waits, such as a simulated engine's step or a paced client. State
// machines never wait.
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
