#include "cli/terminal/interrupts.h"

#include <utility>

#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// How long the end of a command may wait for the thread.
constexpr absl::Duration kWait = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::unique_ptr<Interrupts>> Interrupts::Create() {
  ASSIGN_OR_RETURN(std::unique_ptr<StopSignal> signal, StopSignal::CreateForInterrupts());
  return std::unique_ptr<Interrupts>(new Interrupts(std::move(signal)));
}

Interrupts::Interrupts(std::unique_ptr<StopSignal> signal)
    : signal_(std::move(signal)), thread_("interrupts", [this] { Watch(); }) {}

Interrupts::~Interrupts() {
  absl::MutexLock lock(&mutex_);
  over_ = true;
}

void Interrupts::Begin(std::function<void()> on_interrupt) {
  absl::MutexLock lock(&mutex_);
  on_interrupt_ = std::move(on_interrupt);
  count_ = 0;
}

int Interrupts::End() {
  absl::MutexLock lock(&mutex_);
  on_interrupt_ = nullptr;
  return count_;
}

void Interrupts::Watch() {
  while (true) {
    const bool interrupted = signal_->Wait(kWait) != 0;
    absl::MutexLock lock(&mutex_);
    if (over_) return;
    if (!interrupted || !on_interrupt_) continue;
    ++count_;
    on_interrupt_();
  }
}

}  // namespace tandem::cli
