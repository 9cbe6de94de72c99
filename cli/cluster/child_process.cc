#include "cli/cluster/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/runtime/thread.h"

namespace tandem::cli {
namespace {

class ChildProcessImpl final : public ChildProcess {
 public:
  ChildProcessImpl(const std::string& name, pid_t pid, int read_fd,
                   std::function<void(const std::string&)> on_line)
      : name_(name), pid_(pid), read_fd_(read_fd), on_line_(std::move(on_line)) {
    reader_ = Thread(absl::StrCat("log ", name), [this] { ReadLines(); });
  }

  ~ChildProcessImpl() override {
    if (!ended_.has_value()) {
      kill(pid_, SIGKILL);
      Reap(0);
    }
    reader_.Join();
    close(read_fd_);
  }

  const std::string& name() const override { return name_; }
  pid_t pid() const override { return pid_; }
  void Signal(int signal) override {
    if (!ended_.has_value()) kill(pid_, signal);
  }
  std::optional<std::string> Ended() override {
    if (!ended_.has_value()) Reap(WNOHANG);
    return ended_;
  }

 private:
  void Reap(int flags) {
    int status = 0;
    if (waitpid(pid_, &status, flags) != pid_) return;
    ended_ = WIFSIGNALED(status) ? absl::StrCat("signal ", WTERMSIG(status))
                                 : absl::StrCat("exit code ", WEXITSTATUS(status));
  }

  void ReadLines() {
    std::string pending;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(read_fd_, buffer, sizeof(buffer))) > 0 || (count < 0 && errno == EINTR)) {
      if (count < 0) continue;
      pending.append(buffer, static_cast<size_t>(count));
      size_t newline = 0;
      while ((newline = pending.find('\n')) != std::string::npos) {
        on_line_(pending.substr(0, newline));
        pending.erase(0, newline + 1);
      }
    }
    if (!pending.empty()) on_line_(pending);
  }

  const std::string name_;
  const pid_t pid_;
  const int read_fd_;
  const std::function<void(const std::string&)> on_line_;
  std::optional<std::string> ended_;
  Thread reader_;
};

// What a failed child says before it ends. Async-signal-safe.
[[noreturn]] void Give(const char* message, size_t bytes) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message, bytes);
  _exit(127);
}

// /sys shows the devices of the namespace it was mounted in: a new one, in a mount namespace of the
// child's own.
bool EnterNetwork(int network) {
  return setns(network, CLONE_NEWNET) == 0 && unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
}

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void Exec(const char* binary, char* const* argv, int error_fd, int network) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(error_fd, STDERR_FILENO);
  dup2(error_fd, STDOUT_FILENO);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  static const char not_entered[] = "cannot enter its network namespace\n";
  if (network >= 0 && !EnterNetwork(network)) Give(not_entered, sizeof(not_entered) - 1);
  execv(binary, argv);
  static const char not_executed[] = "cannot be executed: is it built beside tandem?\n";
  Give(not_executed, sizeof(not_executed) - 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& name, const std::string& binary, const std::vector<std::string>& args,
    std::function<void(const std::string& line)> on_line, int network) {
  std::vector<std::string> words = {binary};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  const pid_t pid = fork();
  if (pid < 0) {
    close(fds[0]);
    close(fds[1]);
    return absl::ErrnoToStatus(errno, "fork");
  }
  if (pid == 0) Exec(binary.c_str(), argv.data(), fds[1], network);
  close(fds[1]);
  return std::make_unique<ChildProcessImpl>(name, pid, fds[0], std::move(on_line));
}

}  // namespace tandem::cli
