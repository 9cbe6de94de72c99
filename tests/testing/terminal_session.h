// A program of this build on a pseudo-terminal, driven as a user drives it: keys in, screen out.
//   TerminalSession session({"tandem", "chat"}, {.columns = 40});
//   EXPECT_TRUE(session.Await("> "));  session.Type("hello\n");
// The screen is what the program wrote, without escape sequences: no cursor moves back on it.
// Thread safety: none; the test's thread uses it. The destructor kills the program.
#pragma once

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"

namespace tandem::testing {

struct TerminalSize {
  unsigned short columns = 80;
  unsigned short rows = 24;
};

class TerminalSession {
 public:
  // `words`: a program of this build and its arguments. `env`: added to this process's environment.
  explicit TerminalSession(const std::vector<std::string>& words, TerminalSize size = {},
                           const std::map<std::string, std::string>& env = {}) {
    winsize window{};
    window.ws_col = size.columns;
    window.ws_row = size.rows;
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &window);
    TANDEM_CHECK(pid_ >= 0, "forkpty");
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
      const std::string binary = absl::StrCat(TANDEM_BINARY_DIR, "/bin/", words[0]);
      std::vector<char*> argv;
      for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execv(binary.c_str(), argv.data());
      ::_exit(127);
    }
  }
  ~TerminalSession() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(fd_);
  }
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  void Type(const std::string& keys) {
    for (size_t done = 0; done < keys.size();) {
      const ssize_t wrote = ::write(fd_, keys.data() + done, keys.size() - done);
      if (wrote <= 0) return;  // the program is gone; the next Await says so
      done += static_cast<size_t>(wrote);
    }
  }

  // Waits until `text` stands behind what earlier calls have found. False when it does not come.
  bool Await(const std::string& text, absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time give_up = absl::Now() + timeout;
    while (true) {
      const std::string shown = screen();
      const size_t at = shown.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (!Read(give_up)) return false;
    }
  }

  // Waits until `holds(written())`. False when it does not in time.
  template <typename Holds>
  bool AwaitThat(const Holds& holds, absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time give_up = absl::Now() + timeout;
    while (!holds(written_)) {
      if (!Read(give_up)) return false;
    }
    return true;
  }

  // Gives the terminal another size; the program gets the signal SIGWINCH.
  void Resize(TerminalSize size) {
    winsize window{};
    window.ws_col = size.columns;
    window.ws_row = size.rows;
    TANDEM_CHECK(::ioctl(fd_, TIOCSWINSZ, &window) == 0, "TIOCSWINSZ");
  }

  // What Await found last, up to `text` that comes next: "" when it does not come.
  std::string Until(const std::string& text) {
    const size_t begin = seen_;
    if (!Await(text)) return "";
    return screen().substr(begin, seen_ - begin - text.size());
  }

  // Everything written so far, without escape sequences and carriage returns.
  std::string screen() const {
    std::string text;
    for (size_t i = 0; i < written_.size(); ++i) {
      if (written_[i] == '\033' && i + 1 < written_.size() && written_[i + 1] == '[') {
        for (i += 2; i < written_.size() && (written_[i] < 0x40 || written_[i] > 0x7E);) ++i;
      } else if (written_[i] != '\r') {
        text += written_[i];
      }
    }
    return text;
  }
  // The same with them.
  const std::string& written() const { return written_; }

  // Reads until the program closes the terminal. Returns its exit code, -1 when a signal ended it,
  // -2 when it did not end in time.
  int Finish(absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time give_up = absl::Now() + timeout;
    while (Read(give_up)) {
    }
    if (absl::Now() >= give_up) return -2;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  // False when nothing came in time or the program closed the terminal.
  bool Read(absl::Time give_up) {
    pollfd entry = {.fd = fd_, .events = POLLIN, .revents = 0};
    const int64_t wait_ms = absl::ToInt64Milliseconds(give_up - absl::Now());
    if (wait_ms <= 0 || ::poll(&entry, 1, static_cast<int>(wait_ms)) <= 0) return false;
    char buffer[4096];
    const ssize_t got = ::read(fd_, buffer, sizeof buffer);
    if (got <= 0) return false;
    written_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string written_;
  size_t seen_ = 0;  // of screen()
};

}  // namespace tandem::testing
