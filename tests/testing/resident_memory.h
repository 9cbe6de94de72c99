// How much memory this process takes, as the kernel counts it.
// Thread safety: pure functions.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace tandem::testing {

// A sanitizer's own memory is counted too: where this is false, figures say nothing of the program.
#ifdef TANDEM_SANITIZED
inline constexpr bool kResidentBytesTell = false;
#else
inline constexpr bool kResidentBytesTell = true;
#endif

inline int64_t ResidentBytes() {
  int64_t program = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> program >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace tandem::testing
