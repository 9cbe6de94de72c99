// KERNEL_REQUIRE: a precondition of a kernel, checked in release builds too. A broken precondition
// is a bug of the calling program, so the process ends with a message. Callers refuse bad user
// input before they call a kernel. Thread safety: any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

#define KERNEL_REQUIRE(condition)                                                         \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      std::fprintf(stderr, "%s:%d: kernel precondition broken: %s\n", __FILE__, __LINE__, \
                   #condition);                                                           \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
