// The GPU's version of kernels/cuda/simt/simt.h: one function for each instruction that kernels use
// (PTX ISA 8.0, sm_80 and later). Kernels include it through simt/simt.h only.
// Thread safety: as kernels/cuda/simt/simt.h states.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#define TANDEM_SIMT cuda
#define TANDEM_DEVICE __device__ __forceinline__
#define TANDEM_BOTH __host__ __device__
// Code that both versions compile, but only for threads of a block.
#define TANDEM_KERNEL static __device__ __forceinline__

namespace tandem::kernels::cuda {

TANDEM_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
TANDEM_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
TANDEM_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
TANDEM_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
TANDEM_DEVICE int GridX() { return static_cast<int>(gridDim.x); }

// x, of whose value the compiler knows nothing: what a loop computes from it is computed again in
// each round, and takes no registers between.
TANDEM_DEVICE int Recomputed(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

TANDEM_DEVICE char* SharedMemory() {
  extern __shared__ __align__(128) char tandem_shared[];
  return tandem_shared;
}

// Blocks until the predecessor (kernels/cuda/hopper_types.h) has ended and its results are visible.
TANDEM_DEVICE void WaitForPredecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel's blocks start, once all blocks of this one have called it or ended.
TANDEM_DEVICE void LetSuccessorStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

TANDEM_DEVICE void SyncThreads() { __syncthreads(); }
TANDEM_DEVICE void SyncWarp() { __syncwarp(); }
TANDEM_DEVICE float ShuffleXor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
TANDEM_DEVICE uint32_t ShuffleXor(uint32_t x, int mask) {
  return __shfl_xor_sync(0xffffffffu, x, mask);
}
TANDEM_DEVICE uint64_t ShuffleXor(uint64_t x, int mask) {
  return __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(x), mask);
}

// The value of lane `lane` % 32.
TANDEM_DEVICE float Shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
TANDEM_DEVICE uint32_t Shuffle(uint32_t x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
TANDEM_DEVICE uint64_t Shuffle(uint64_t x, int lane) {
  return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(x), lane);
}
// The lanes for which `set` holds, a bit each.
TANDEM_DEVICE uint32_t Ballot(bool set) { return __ballot_sync(0xffffffffu, set); }
// The sum over the warp, modulo 2^32.
TANDEM_DEVICE uint32_t WarpTotal(uint32_t x) { return __reduce_add_sync(0xffffffffu, x); }
TANDEM_DEVICE uint32_t PopCount(uint32_t x) { return static_cast<uint32_t>(__popc(x)); }
// REQUIRES: x is not 0.
TANDEM_DEVICE int LowestBit(uint32_t x) { return __ffs(static_cast<int>(x)) - 1; }

// dst += x in shared memory; returns what was there. There is no 64-bit version: that one compiles
// to a loop of compare-and-swap.
TANDEM_DEVICE uint32_t SharedAdd(uint32_t* dst, uint32_t x) { return atomicAdd(dst, x); }
// dst |= x in shared memory.
TANDEM_DEVICE void SharedOr(uint32_t* dst, uint32_t x) { atomicOr(dst, x); }

TANDEM_BOTH inline float BitsToFloat(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } word = {bits};
  return word.value;
}
TANDEM_BOTH inline uint32_t FloatToBits(float value) {
  union {
    float value;
    uint32_t bits;
  } word = {value};
  return word.bits;
}

// (x & mask) | bits. With two constants the compiler makes two instructions of the plain form, each
// with one immediate operand; this is one, with a constant in a register.
TANDEM_DEVICE uint32_t MaskOr(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// 2^x by the special function unit: the one exponential of attention.
TANDEM_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TANDEM_DEVICE float Exp(float x) { return expf(x); }
TANDEM_DEVICE float Tanh(float x) { return tanhf(x); }
TANDEM_DEVICE float Sqrt(float x) { return sqrtf(x); }
TANDEM_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
TANDEM_DEVICE float Min(float a, float b) { return fminf(a, b); }
TANDEM_DEVICE float Abs(float x) { return fabsf(x); }
TANDEM_DEVICE float Fma(float a, float b, float c) { return fmaf(a, b, c); }

// To the nearest integer, ties to even.
TANDEM_DEVICE int RoundToInt(float x) { return __float2int_rn(x); }

// Rounded multiplication and addition that no compiler contracts into an fma: for results that two
// kernels must agree on to the bit.
TANDEM_DEVICE float Mul(float a, float b) { return __fmul_rn(a, b); }
TANDEM_DEVICE float Add(float a, float b) { return __fadd_rn(a, b); }
TANDEM_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
// To the nearest integer, halves to the even one.
TANDEM_DEVICE float RoundNearest(float x) { return rintf(x); }

// Two values rounded to bf16 in one register, `low` in the low half, as matrix instructions take
// them.
TANDEM_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// a · b + c for two bf16 pairs, each rounded once; subnormals are kept.
TANDEM_DEVICE uint32_t FmaBf16Pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Starts copying 16 bytes to shared memory, or writes zeros when not `valid` (nothing is read).
TANDEM_DEVICE void CopyAsync16(void* shared, const void* global, bool valid) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(bytes)
               : "memory");
}
TANDEM_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` of this thread's committed groups are unfinished.
template <int kPending>
TANDEM_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8×8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
TANDEM_DEVICE void LoadMatrix4(uint32_t out[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
TANDEM_DEVICE void LoadMatrix4Transposed(uint32_t out[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// d[16×8] += a[16×16] · b[16×8], bf16 operands, fp32 accumulators, in the fragments of
// mma.m16n8k16.
TANDEM_DEVICE void Mma(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d[16×8] += a[16×32] · b[32×8], int8 operands, exact in int32, in the fragments of mma.m16n8k32.
TANDEM_DEVICE void MmaInt8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace tandem::kernels::cuda
