// Turns SIGTERM, SIGINT and SIGHUP into an event that a main function waits for. After the first
// signal the process drains; a second SIGTERM or SIGINT then ends it at once. A terminal that
// closes sends SIGHUP, often twice, so that a second one changes nothing. Thread safety: one thread
// calls Wait. Create it before other threads start: they inherit its signal mask.
#pragma once

#include <signal.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem {

class StopSignal {
 public:
  // Blocks SIGTERM, SIGINT and, unless it is ignored (nohup), SIGHUP in this thread and the threads
  // it starts later; ignores SIGPIPE, and SIGXFSZ: a write beyond the bound on a process's files
  // then fails, as on a full disk.
  static absl::StatusOr<std::unique_ptr<StopSignal>> Create();
  // The same for SIGINT alone: Ctrl-C interrupts what a command does for its user.
  static absl::StatusOr<std::unique_ptr<StopSignal>> CreateForInterrupts();
  ~StopSignal();

  // Waits at most `timeout` for a signal. Returns its number, or 0 on timeout.
  int Wait(absl::Duration timeout);
  // Becomes readable when a signal is pending, for callers that poll several descriptors.
  int fd() const { return fd_; }
  // Gives the signals but SIGHUP their default action again: the next one ends the process.
  void Restore();

 private:
  static absl::StatusOr<std::unique_ptr<StopSignal>> Block(const sigset_t& set);
  StopSignal(const sigset_t& set, int fd) : set_(set), fd_(fd) {}
  const sigset_t set_;
  const int fd_;
};

// Gives SIGHUP the action that this process was started with: UCX, once loaded, uses the signal to
// write more to its log. Programs that create no StopSignal call it at their start.
void RestoreHangup();

}  // namespace tandem
