// SIGTERM and SIGINT as an event a main can wait for. The second signal ends the process at once.
// Thread safety: Wait by one thread; create before other threads start, so that they inherit the
// mask.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem {

class StopSignal {
 public:
  // Blocks SIGTERM and SIGINT in this thread and those it starts, and ignores SIGPIPE.
  static absl::StatusOr<std::unique_ptr<StopSignal>> Create();
  ~StopSignal();

  // Waits for a signal, at most `timeout`; its number, or 0 on timeout.
  int Wait(absl::Duration timeout);
  // Readable when a signal is pending: for callers that poll several descriptors.
  int fd() const { return fd_; }
  // From now on a further signal takes its default action.
  void Restore();

 private:
  explicit StopSignal(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace tandem
