// The saved state of a suspended fiber: a stack, and on it the registers that the calling
// convention keeps. A switch takes some nanoseconds on x86-64. Other processors use ucontext, which
// makes one or two system calls. Thread safety: fibers switch among each other on one host thread.
// Owner: the emulated block.
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
  // Saves this context, which is running, and continues `next`.
  void SwitchTo(FiberContext& next);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace tandem::kernels::emulated
