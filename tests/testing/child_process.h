// A child process driven line by line over its stdin and stdout.
//   ChildProcess child({path, "arg"});
//   child.Write("command");  EXPECT_EQ(child.ReadLine("answer ", absl::Seconds(5)), "answer 1");
// The destructor kills the child. Thread safety: none.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace tandem::testing {

class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& command) {
    int in[2], out[2];
    // A pipe that leaked into a sibling would hide the child's end of file.
    TANDEM_CHECK(::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0);
    pid_ = ::fork();
    TANDEM_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      std::vector<char*> argv;
      for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~ChildProcess() {
    if (pid_ > 0) Signal(SIGKILL);
    if (in_ >= 0) ::close(in_);
    ::close(out_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { ::kill(pid_, signal); }
  // Sends SIGKILL and waits for the process to end: until its parent waits, it looks alive in
  // /proc.
  void Kill() {
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  void Write(const std::string& line) {
    const std::string bytes = line + "\n";
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = ::write(in_, bytes.data() + done, bytes.size() - done);
      if (wrote <= 0) return;  // the child is gone; the next read says so
      done += static_cast<size_t>(wrote);
    }
  }

  // The next line that starts with `prefix`; earlier lines stay for other reads. Empty when no such
  // line came within `timeout`, or the child closed its output.
  std::string ReadLine(const std::string& prefix, absl::Duration timeout) {
    const absl::Time give_up = absl::Now() + timeout;
    while (true) {
      for (auto it = lines_.begin(); it != lines_.end(); ++it) {
        if (!absl::StartsWith(*it, prefix)) continue;
        const std::string line = *it;
        lines_.erase(it);
        return line;
      }
      pollfd fd = {.fd = out_, .events = POLLIN, .revents = 0};
      const int64_t wait_ms = absl::ToInt64Milliseconds(give_up - absl::Now());
      if (wait_ms <= 0 || ::poll(&fd, 1, static_cast<int>(wait_ms)) <= 0) return "";
      char buffer[4096];
      const ssize_t got = ::read(out_, buffer, sizeof buffer);
      if (got <= 0) return "";
      for (ssize_t i = 0; i < got; ++i) {
        if (buffer[i] != '\n') {
          partial_.push_back(buffer[i]);
          continue;
        }
        lines_.push_back(partial_);
        partial_.clear();
      }
    }
  }

  // Closes the child's stdin and waits for it to end. Returns its exit code, or -1 when a signal
  // ended it.
  int Finish() {
    ::close(in_);
    in_ = -1;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::vector<std::string> lines_;
  std::string partial_;
};

}  // namespace tandem::testing
