#include "common/runtime/stop_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>

#include "absl/status/status.h"

namespace tandem {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StopSignal>> StopSignal::Create() {
  return Block(SetOf({SIGTERM, SIGINT}));
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

void StopSignal::Restore() { pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

}  // namespace tandem
