#include "common/config/start_guard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/config/process_main.h"
#include "common/telemetry/log.h"

namespace tandem::config {

StartGuard::StartGuard(const StopSignal& stop)
    : over_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_("start-guard", [this, fd = stop.fd()] { Watch(fd); }) {
  TANDEM_CHECK(over_fd_ >= 0, "eventfd: errno ", errno);
}

StartGuard::~StartGuard() {
  const uint64_t one = 1;
  TANDEM_CHECK(write(over_fd_, &one, sizeof(one)) == sizeof(one), "eventfd: errno ", errno);
  thread_.Join();
  close(over_fd_);
}

void StartGuard::Watch(int stop_fd) {
  pollfd entries[] = {{stop_fd, POLLIN, 0}, {over_fd_, POLLIN, 0}};
  while (poll(entries, 2, -1) < 0) TANDEM_CHECK(errno == EINTR, "poll: errno ", errno);
  // A signal that comes as the start ends is left to the main function, which drains.
  if (entries[1].revents != 0) return;
  Log(LogLevel::kInfo, "stopped before it had started");
  _exit(kExitOk);
}

}  // namespace tandem::config
