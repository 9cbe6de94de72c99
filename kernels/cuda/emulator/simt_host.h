// The host's version of simt/simt.h: each function does what the PTX manual says of the
// instruction, inside an emulated thread block. Kernels include it through simt/simt.h only.
//
// Stricter than a GPU on purpose: shared memory starts as NaN, asynchronous copies land as late as
// the waits allow, threads run in an order drawn anew at every barrier, and a barrier that part of
// a warp or block never reaches ends the process.
// Thread safety: threads of the emulated block, which run one at a time on one host thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/emulator/thread_block.h"

#define TANDEM_SIMT emulated
#define TANDEM_DEVICE inline
#define TANDEM_BOTH
#define TANDEM_KERNEL static inline

namespace tandem::kernels::emulated {

inline int ThreadIndex() { return CurrentThread().index; }
inline int BlockThreads() { return CurrentThread().block->num_threads; }
inline int BlockX() { return CurrentThread().block->x; }
inline int BlockY() { return CurrentThread().block->y; }
inline int GridX() { return CurrentThread().block->grid_x; }
inline int Recomputed(int x) { return x; }
inline char* SharedMemory() { return CurrentThread().block->shared; }

inline void WaitForPredecessor() { AwaitPredecessor(); }

inline void SyncThreads() { BlockBarrier(); }
inline void SyncWarp() { WarpBarrier(); }

template <typename T>
T ShuffleXorOf(T x, int mask) {
  const WarpExchange<T> exchange(x);
  return exchange.of((ThreadIndex() % 32) ^ mask);
}
inline float ShuffleXor(float x, int mask) { return ShuffleXorOf(x, mask); }
inline uint32_t ShuffleXor(uint32_t x, int mask) { return ShuffleXorOf(x, mask); }
inline uint64_t ShuffleXor(uint64_t x, int mask) { return ShuffleXorOf(x, mask); }

template <typename T>
T ShuffleOf(T x, int lane) {
  const WarpExchange<T> exchange(x);
  return exchange.of(lane & 31);
}
inline float Shuffle(float x, int lane) { return ShuffleOf(x, lane); }
inline uint32_t Shuffle(uint32_t x, int lane) { return ShuffleOf(x, lane); }
inline uint64_t Shuffle(uint64_t x, int lane) { return ShuffleOf(x, lane); }
inline uint32_t Ballot(bool set) {
  const WarpExchange<bool> exchange(set);
  uint32_t lanes = 0;
  for (int lane = 0; lane < 32; ++lane) lanes |= uint32_t{exchange.of(lane)} << lane;
  return lanes;
}
inline uint32_t WarpTotal(uint32_t x) {
  const WarpExchange<uint32_t> exchange(x);
  uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += exchange.of(lane);
  return sum;
}
inline uint32_t PopCount(uint32_t x) { return static_cast<uint32_t>(__builtin_popcount(x)); }
inline int LowestBit(uint32_t x) { return __builtin_ctz(x); }

// Threads of a block run one at a time, so a plain addition is atomic.
inline uint32_t SharedAdd(uint32_t* dst, uint32_t x) {
  const uint32_t old = *dst;
  *dst += x;
  return old;
}
inline void SharedOr(uint32_t* dst, uint32_t x) { *dst |= x; }

inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline uint32_t MaskOr(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }

inline uint32_t RoundToBf16(float x) {
  const uint32_t bits = FloatToBits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;  // the GPU's one NaN
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
inline uint32_t PackBf16(float low, float high) {
  return RoundToBf16(low) | RoundToBf16(high) << 16;
}

// a · b + c, rounded once: the intermediate result's last bit records whether it was inexact.
inline uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c) {
  const double exact = std::fma(double{BitsToFloat(a << 16)}, double{BitsToFloat(b << 16)},
                                double{BitsToFloat(c << 16)});
  float value = static_cast<float>(exact);
  if (value != exact && FloatToBits(value) % 2 == 0) {
    value = std::nextafterf(value, value < exact ? INFINITY : -INFINITY);
  }
  return RoundToBf16(value);
}
inline uint32_t FmaBf16Pair(uint32_t a, uint32_t b, uint32_t c) {
  return FmaBf16(a & 0xffff, b & 0xffff, c & 0xffff) | FmaBf16(a >> 16, b >> 16, c >> 16) << 16;
}

inline float Exp2(float x) { return std::exp2(x); }
inline float Exp(float x) { return std::exp(x); }
inline float Tanh(float x) { return std::tanh(x); }
inline float Sqrt(float x) { return std::sqrt(x); }
inline float Max(float a, float b) { return std::fmax(a, b); }
inline float Min(float a, float b) { return std::fmin(a, b); }
inline float Abs(float x) { return std::fabs(x); }
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
inline int RoundToInt(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float Mul(float a, float b) { return a * b; }
inline float Add(float a, float b) { return a + b; }
inline float Divide(float a, float b) { return a / b; }
inline float RoundNearest(float x) { return std::nearbyint(x); }

inline void CopyAsync16(void* shared, const void* global, bool valid) {
  CurrentThread().copies.Start(shared, global, valid);
}
inline void CommitCopies() { CurrentThread().copies.Commit(); }
template <int kPending>
void WaitCopies() {
  CurrentThread().copies.Wait(kPending);
}

struct Halves {
  uint16_t of[8];
};
// Each lane gets, of each of four matrices, elements (row lane/4, columns 2·(lane%4) and the next),
// or those of its transpose.
void LoadMatrix4(uint32_t out[4], const void* row);
void LoadMatrix4Transposed(uint32_t out[4], const void* row);
void Mma(float d[4], const uint32_t a[4], const uint32_t b[2]);
void MmaInt8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]);

}  // namespace tandem::kernels::emulated
