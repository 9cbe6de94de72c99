#include "common/runtime/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>

#include "absl/status/status.h"

// Of UCX. Null in programs that are linked without it.
extern "C" void ucs_debug_disable_signal(int signal) __attribute__((weak));

namespace tandem {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void RestoreHangup() {
  struct sigaction action = {};
  sigaction(SIGHUP, nullptr, &action);
  // UCX warns of a signal that it does not handle.
  const bool handled = action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
  if (handled && ucs_debug_disable_signal != nullptr) ucs_debug_disable_signal(SIGHUP);
}

absl::StatusOr<std::unique_ptr<StopSignal>> StopSignal::Create() {
  RestoreHangup();
  sigset_t set = SetOf({SIGTERM, SIGINT});
  if (!IsIgnored(SIGHUP)) sigaddset(&set, SIGHUP);
  return Block(set);
}

absl::StatusOr<std::unique_ptr<StopSignal>> StopSignal::CreateForInterrupts() {
  return Block(SetOf({SIGINT}));
}

absl::StatusOr<std::unique_ptr<StopSignal>> StopSignal::Block(const sigset_t& set) {
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) {
    return absl::InternalError("cannot block signals");
  }
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "signalfd");
  return std::unique_ptr<StopSignal>(new StopSignal(set, fd));
}

StopSignal::~StopSignal() { close(fd_); }

int StopSignal::Wait(absl::Duration timeout) {
  pollfd entry{fd_, POLLIN, 0};
  const int64_t wait_ms = std::min<int64_t>(absl::ToInt64Milliseconds(timeout), 1 << 30);
  if (poll(&entry, 1, timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(wait_ms)) <= 0) {
    return 0;
  }
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

void StopSignal::Restore() {
  sigset_t set = set_;
  sigdelset(&set, SIGHUP);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace tandem
