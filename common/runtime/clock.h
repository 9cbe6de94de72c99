// The seam for time. State machines take `now` as a parameter; the shells around them read it from
// a Clock; the simulator brings its own.
// Thread safety: any thread.
#pragma once

#include "absl/time/time.h"

namespace tandem {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time that never goes backwards within a process.
  virtual absl::Time Now() const = 0;
};

// The machine's clock: wall time at process start plus the monotonic clock since. Never deleted.
const Clock& RealClock();

}  // namespace tandem
