// TANDEM_CHECK: an invariant of the program, checked in release builds too. A broken invariant ends
// the process with a message; the router recovers the requests it held. Environment failures are a
// Status.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition,
                                     const std::string& detail) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s %s\n", file, line, condition, detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace tandem

// TANDEM_CHECK(condition, "block ", id, " ..."): the detail is built only on failure.
#define TANDEM_CHECK(condition, ...)                                      \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::tandem::CheckFailed(__FILE__, __LINE__, #condition,               \
                            absl::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)
