// A child process of `tandem up`: started in a process group of its own (the terminal's Ctrl-C
// reaches only the parent), its standard error read line by line, ended with the parent. Thread
// safety: by its owner; the line callback runs on the child's reader thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::cli {

class ChildProcess {
 public:
  // Runs `binary` with `args`; `on_line` gets each line of its standard error. `network`: a
  // descriptor of the network namespace to run in; -1 = this process's.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& name, const std::string& binary, const std::vector<std::string>& args,
      std::function<void(const std::string& line)> on_line, int network = -1);
  // Kills (SIGKILL) and reaps what still runs.
  virtual ~ChildProcess() = default;

  virtual const std::string& name() const = 0;
  virtual pid_t pid() const = 0;
  virtual void Signal(int signal) = 0;
  // What it ended with ("exit code 1", "signal 9"), once it has; reaps.
  virtual std::optional<std::string> Ended() = 0;
};

}  // namespace tandem::cli
