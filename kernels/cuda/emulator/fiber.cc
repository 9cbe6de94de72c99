#include "kernels/cuda/emulator/fiber.h"

#include <cstdint>

#if defined(__x86_64__)

// The System V calling convention's callee-saved registers lie on the stack of a fiber that waits,
// its return address above them.
extern "C" void TandemSwitchFiber(void** save, void* load);
asm(R"(
.text
.globl TandemSwitchFiber
.type TandemSwitchFiber, @function
TandemSwitchFiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size TandemSwitchFiber, .-TandemSwitchFiber
)");

namespace tandem::kernels::emulated {

void FiberContext::Prepare(char* stack, size_t bytes, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  // Functions begin with the stack 8 bytes past a multiple of 16, as if called.
  const uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes - 64) / 16 * 16;
  void** frame = reinterpret_cast<void**>(top) - kSavedRegisters;
  for (int i = 0; i < kSavedRegisters; ++i) frame[i] = nullptr;
  frame[kSavedRegisters] = reinterpret_cast<void*>(entry);
  stack_pointer_ = frame;
}

void FiberContext::SwitchTo(FiberContext& next) {
  TandemSwitchFiber(&stack_pointer_, next.stack_pointer_);
}

}  // namespace tandem::kernels::emulated

#else

namespace tandem::kernels::emulated {

void FiberContext::Prepare(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void FiberContext::SwitchTo(FiberContext& next) { swapcontext(&context_, &next.context_); }

}  // namespace tandem::kernels::emulated

#endif
