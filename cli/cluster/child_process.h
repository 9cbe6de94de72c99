// A child process of `tandem up`. It has a process group of its own, so that Ctrl-C in the terminal
// reaches only the parent. A reader thread reads its standard error line by line. It ends with the
// parent.
//
// Thread safety: the owner's thread only; the line callback runs on the reader thread.
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
  // How the process ended ("exit code 1", "signal 9"); nullopt while it runs. Reaps it.
  virtual std::optional<std::string> Ended() = 0;
};

}  // namespace tandem::cli
