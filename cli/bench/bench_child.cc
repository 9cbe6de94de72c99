#include "cli/bench/bench_child.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace tandem::cli {

double ProcessSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

absl::StatusOr<std::unique_ptr<BenchChild>> BenchChild::Fork(absl::FunctionRef<void(int)> run) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("socketpair: ", std::strerror(errno)));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    char go = 0;
    if (Take(ends[1], go)) run(ends[1]);
    // Without destructors: the parent's objects are this process's, too.
    ::_exit(0);
  }
  ::close(ends[1]);
  std::unique_ptr<BenchChild> forked(new BenchChild(ends[0], child));
  if (child > 0) return forked;
  return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
}

BenchChild::~BenchChild() {
  ::close(fd_);
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

absl::Status BenchChild::Start() const {
  if (Put(fd_, char{1})) return absl::OkStatus();
  return absl::UnavailableError("a process of the measurement ended before it began");
}

}  // namespace tandem::cli
