// A named thread that its owner joins: production code starts threads only through this class.
// Thread safety: the owner alone calls Join and the destructor; any thread calls
// ThreadProcessorTime.
#pragma once

#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace tandem {

class Thread {
 public:
  Thread() = default;
  // Starts a thread that runs `body`. Debuggers show the first 15 characters of `name`.
  Thread(const std::string& name, absl::AnyInvocable<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&&) = default;
  Thread& operator=(Thread&& other) noexcept;

  void Join();
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

// The processor time that the calling thread has taken since it began. A system call.
absl::Duration ThreadProcessorTime();

}  // namespace tandem
