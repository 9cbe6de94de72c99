// A library for LD_PRELOAD that steps the wall clock of a process by the seconds that a file says,
// and leaves the monotonic clock alone. The file, named by TANDEM_STEPPED_CLOCK, holds one int64_t;
// each process that maps it steps at once when the number changes.
//
// As in a kernel whose clock is set, a wait until a time of the wall clock ends by the stepped
// clock: a step back makes it longer, a step forwards ends it. Such a wait is cut into slices,
// since the kernel knows nothing of the steps.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSlice = kSecond / 100;

const volatile int64_t* MapStep() {
  static const int64_t none = 0;
  const char* path = getenv("TANDEM_STEPPED_CLOCK");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return &none;
  void* mapped = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? &none : static_cast<const volatile int64_t*>(mapped);
}

int64_t StepSeconds() {
  static const volatile int64_t* const step = MapStep();
  return *step;
}

using SystemCall = long (*)(long, ...);
SystemCall RealSystemCall() {
  static const auto real = reinterpret_cast<SystemCall>(dlsym(RTLD_NEXT, "syscall"));
  return real;
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec TimeOf(int64_t nanoseconds) {
  return {.tv_sec = nanoseconds / kSecond, .tv_nsec = nanoseconds % kSecond};
}
int64_t KernelNow() {
  timespec time = {};
  RealSystemCall()(SYS_clock_gettime, CLOCK_REALTIME, &time);
  return Nanoseconds(time);
}

// FUTEX_WAIT_BITSET until a time of the wall clock.
long WaitInSlices(const long (&words)[6], int64_t until) {
  while (true) {
    const int64_t now = KernelNow();
    const int64_t left = until - (now + StepSeconds() * kSecond);
    const timespec slice = TimeOf(now + (left < 0 ? 0 : left < kSlice ? left : kSlice));
    const long result =
        RealSystemCall()(SYS_futex, words[0], words[1], words[2], &slice, words[4], words[5]);
    if (result == 0 || errno != ETIMEDOUT || left <= kSlice) return result;
  }
}

bool IsWall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) {
  const auto result = static_cast<int>(RealSystemCall()(SYS_clock_gettime, clock, time));
  if (result == 0 && IsWall(clock)) time->tv_sec += StepSeconds();
  return result;
}

int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME) != 0 &&
      (words[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && words[3] != 0)
    return WaitInSlices(words, Nanoseconds(*reinterpret_cast<const timespec*>(words[3])));
  return RealSystemCall()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

}  // extern "C"
