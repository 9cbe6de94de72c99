// A forked process that takes part in a measurement, and a socket to it. Fork all of them before
// the first measurement: a process with threads cannot be forked safely, and what a process has
// drawn at random by then, its children would draw too.
// Thread safety: none; one thread. Owner: the measurement.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace tandem::cli {

// One value over a socket; false when the other end has gone.
template <typename T>
bool Put(int fd, const T& value) {
  return ::send(fd, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
}
template <typename T>
bool Take(int fd, T& value) {
  return ::recv(fd, &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

// Processor time of all threads of this process so far.
double ProcessSeconds();

class BenchChild {
 public:
  // The child waits for Start, runs `run` with its end of the socket, and exits. Errors:
  // kResourceExhausted when the system refuses a process or a socket.
  static absl::StatusOr<std::unique_ptr<BenchChild>> Fork(absl::FunctionRef<void(int fd)> run);
  // Ends the child.
  ~BenchChild();
  BenchChild(const BenchChild&) = delete;
  BenchChild& operator=(const BenchChild&) = delete;

  // Errors: kUnavailable when the child has ended.
  absl::Status Start() const;
  int fd() const { return fd_; }

 private:
  BenchChild(int fd, pid_t child) : fd_(fd), child_(child) {}
  const int fd_;
  const pid_t child_;
};

}  // namespace tandem::cli
