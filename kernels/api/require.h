// KERNEL_REQUIRE: a precondition of a kernel, checked in release builds too. A caller that breaks
// one is a bug of the program, so the process ends with a message; bad user input is refused long
// before.
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
