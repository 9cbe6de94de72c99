// Where a fiber goes on: a stack and what the calling convention keeps on it. Switching costs some
// nanoseconds on x86-64; elsewhere ucontext serves, with a system call or two.
// Thread safety: fibers switch among each other on one thread.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace tandem::kernels::emulated {

class FiberContext {
 public:
  // The next switch to this context calls `entry` on `stack`, [bytes]. `entry` never returns.
  void Prepare(char* stack, size_t bytes, void (*entry)());
  // Saves this context, which is running, and goes on with `next`.
  void SwitchTo(FiberContext& next);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace tandem::kernels::emulated
