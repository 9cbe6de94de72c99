// TANDEM_CHECK: an assertion that release builds keep. A failed check means that the program has a
// bug: it prints the condition and aborts the process, and the router moves the process's requests
// to other nodes. A failure of the environment (a file, a peer, memory) is a Status, not a check.
// Thread safety: any thread.
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
