// For a thread that waits for something that comes within microseconds: it stays awake while its
// processor has nothing else to do, because to sleep and to be woken takes longer. Where threads
// share a processor it had better sleep: then the scheduler runs it as soon as it is woken, and not
// when another's time slice ends.
// Thread safety: none; the waiting thread. Owner: the object that owns the thread.
#pragma once

#include <chrono>
#include <thread>

namespace tandem {

class PoliteSpin {
 public:
  // Gives the processor to a thread that wants it. True: none did, and the caller may look again
  // for what it waits for. False: one did, now or a short time ago; the caller had better sleep.
  bool Yield() {
    const auto before = Clock::now();
    if (before < sleep_until_) return false;
    std::this_thread::yield();
    const auto after = Clock::now();
    if (after - before < kAloneMax) return true;
    sleep_until_ = after + kBackOff;
    return false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // A yield that no thread takes up returns well before; a time slice is 1 to 4 ms.
  static constexpr auto kAloneMax = std::chrono::microseconds(50);
  // Trying again costs a time slice where the processor is still shared.
  static constexpr auto kBackOff = std::chrono::milliseconds(200);

  Clock::time_point sleep_until_;
};

}  // namespace tandem
