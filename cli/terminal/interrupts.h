// Ctrl-C while a command works for its user: it ends the work, and the command goes on.
//   ASSIGN_OR_RETURN(auto interrupts, Interrupts::Create());   // before other threads start
//   interrupts->Begin([&] { cancellation.Cancel(); });  …work…;  if (interrupts->End()) …
// Between End and Begin an interrupt is forgotten.
// Thread safety: the owner's thread calls Begin and End; `on_interrupt` runs on a thread of this
// object. Owner: a command.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/runtime/stop_signal.h"
#include "common/runtime/thread.h"

namespace tandem::cli {

class Interrupts {
 public:
  static absl::StatusOr<std::unique_ptr<Interrupts>> Create();
  ~Interrupts();

  // Each interrupt from now on calls `on_interrupt`.
  void Begin(std::function<void()> on_interrupt);
  // Returns how many interrupts came since Begin. `on_interrupt` does not run after it.
  int End();

 private:
  explicit Interrupts(std::unique_ptr<StopSignal> signal);
  void Watch();

  const std::unique_ptr<StopSignal> signal_;
  absl::Mutex mutex_;
  std::function<void()> on_interrupt_ ABSL_GUARDED_BY(mutex_);
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace tandem::cli
