// Programs as a user runs them: run to their end, or kept running while a test reads their log.
// Thread safety: none; the test's thread uses it.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/cluster/child_process.h"

namespace tandem::testing {

struct ProgramRun {
  int exit_code = -1;  // 124: it did not end within its time
  std::string output;  // standard output and error as they came
};
inline void PrintTo(const ProgramRun& run, std::ostream* out) {
  *out << "exit code " << run.exit_code << "\n" << run.output;
}

// What the shell's `command` writes to its standard output, and its exit code.
inline ProgramRun RunShell(const std::string& command) {
  ProgramRun run;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  char buffer[4096];
  for (size_t got = 0; (got = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    run.output.append(buffer, got);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) run.exit_code = WEXITSTATUS(status);
  return run;
}

// Runs `words` (a program of this build and its arguments) to its end, with `env` added to this
// process's environment. `input`: the file that is its standard input.
inline ProgramRun RunProgram(const std::vector<std::string>& words,
                             const std::map<std::string, std::string>& env = {},
                             const std::string& input = "/dev/null") {
  const auto quoted = [](absl::string_view word) {
    return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "' ");
  };
  std::string command = "env ";
  for (const auto& [name, value] : env) command += quoted(absl::StrCat(name, "=", value));
  absl::StrAppend(&command, "timeout 60 ",
                  quoted(absl::StrCat(TANDEM_BINARY_DIR, "/bin/", words[0])));
  for (size_t i = 1; i < words.size(); ++i) command += quoted(words[i]);
  return RunShell(absl::StrCat(command, "2>&1 <", quoted(input)));
}

// A program that runs while the test works with it. The destructor kills it.
class RunningProgram {
 public:
  // `words`: a program of this build and its arguments.
  static absl::StatusOr<std::unique_ptr<RunningProgram>> Start(std::vector<std::string> words) {
    auto program = std::unique_ptr<RunningProgram>(new RunningProgram());
    const std::string name = words[0];
    words.erase(words.begin());
    auto child = cli::ChildProcess::Start(
        name, absl::StrCat(TANDEM_BINARY_DIR, "/bin/", name), words,
        [raw = program.get()](const std::string& line) { raw->OnLine(line); });
    if (!child.ok()) return child.status();
    program->child_ = *std::move(child);
    return program;
  }

  // The first line, of those so far and to come, that contains `text`; "" when none came in time.
  std::string AwaitLine(const std::string& text, absl::Duration timeout = absl::Seconds(30)) {
    const auto found = [&] { return !Find(text).empty(); };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&found), timeout);
    return Find(text);
  }
  // The value of `key=` in the first line with `text`.
  std::string AwaitField(const std::string& text, const std::string& key) {
    const std::string line = AwaitLine(text);
    const std::string marker = absl::StrCat(" ", key, "=");
    const size_t at = line.find(marker);
    if (at == std::string::npos) return "";
    const size_t begin = at + marker.size();
    return line.substr(begin, line.find(' ', begin) - begin);
  }
  // "exit code 1" or "signal 9"; nullopt when the program still runs after `timeout`.
  std::optional<std::string> AwaitEnd(absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      std::optional<std::string> ended = child_->Ended();
      if (ended.has_value() || absl::Now() > deadline) return ended;
      const bool never = false;
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(10));
    }
  }
  void Signal(int signal) { child_->Signal(signal); }
  pid_t pid() const { return child_->pid(); }
  bool running() { return !child_->Ended().has_value(); }
  std::string log() const {
    absl::MutexLock lock(&mutex_);
    std::string all;
    for (const std::string& line : lines_) absl::StrAppend(&all, line, "\n");
    return all;
  }

 private:
  RunningProgram() = default;
  void OnLine(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    lines_.push_back(line);
  }
  std::string Find(const std::string& text) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const std::string& line : lines_)
      if (absl::StrContains(line, text)) return line;
    return "";
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<cli::ChildProcess> child_;  // ends first: its reader uses the lines
};

}  // namespace tandem::testing
