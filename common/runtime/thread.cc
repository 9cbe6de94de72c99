#include "common/runtime/thread.h"

#include <pthread.h>
#include <time.h>

#include <utility>

namespace tandem {

Thread::Thread(const std::string& name, absl::AnyInvocable<void()> body)
    : thread_([name, body = std::move(body)]() mutable {
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        body();
      }) {}

Thread& Thread::operator=(Thread&& other) noexcept {
  Join();
  thread_ = std::move(other.thread_);
  return *this;
}

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

absl::Duration ThreadProcessorTime() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace tandem
