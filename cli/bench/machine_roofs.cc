#include "cli/bench/machine_roofs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/engine/aligned_buffer.h"
#include "common/runtime/clock.h"

namespace tandem::engine {
namespace {

// Together larger than any cache, so that reading them in turn is reading memory.
constexpr size_t kRegionBytes = size_t{64} << 20, kRegions = 8;
constexpr int64_t kPieces = 256;  // of a region, for the threads to take
constexpr size_t kReadTrials = 32;
// Fits the L2 cache of any supported core, and not its L1.
constexpr size_t kCachedBytes = size_t{256} << 10;
constexpr int kCachedReads = 100;  // in a trial

// The xor of all words of [data, data + bytes): reads each once. REQUIRES: a multiple of 256 bytes
// on a 32-byte boundary.
using Fold = uint64_t (*)(const std::byte* data, size_t bytes);

uint64_t FoldWords(const std::byte* data, size_t bytes) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  uint64_t sums[8] = {};
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

#if defined(__x86_64__)

// Loads of eight bytes have a quarter of the caches' rate.
__attribute__((target("avx2"))) uint64_t FoldVectors(const std::byte* data, size_t bytes) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t i = 0; i < bytes; i += sizeof sums) {
    const auto* vectors = reinterpret_cast<const __m256i*>(data + i);
#pragma GCC unroll 8
    for (int lane = 0; lane < 8; ++lane) {
      sums[lane] = _mm256_xor_si256(sums[lane], _mm256_load_si256(vectors + lane));
    }
  }
  alignas(32) uint64_t words[4];
  for (int lane = 1; lane < 8; ++lane) sums[0] = _mm256_xor_si256(sums[0], sums[lane]);
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

Fold FastestFold() { return __builtin_cpu_supports("avx2") != 0 ? &FoldVectors : &FoldWords; }

#else

Fold FastestFold() { return &FoldWords; }

#endif

// Bytes a second that all threads read together from memory, in the fastest trial. A trial reads
// one region, and is short, so that other programs leave some trials undisturbed.
double MemoryBandwidth(const kernels::ParallelFor& parallel) {
  constexpr size_t kPieceBytes = kRegionBytes / kPieces;
  AlignedBuffer buffer(kRegionBytes * kRegions);
  std::memset(buffer.data(), 1, buffer.bytes());
  const Fold fold = FastestFold();
  std::atomic<uint64_t> sink{0};
  double best = 1e9;
  for (size_t trial = 0; trial < kReadTrials; ++trial) {
    const std::byte* region =
        static_cast<const std::byte*>(buffer.data()) + trial % kRegions * kRegionBytes;
    best = std::min(best, SecondsOf([&] {
                      parallel(kPieces, [&](int64_t piece, int) {
                        const uint64_t all =
                            fold(region + static_cast<size_t>(piece) * kPieceBytes, kPieceBytes);
                        sink.fetch_xor(all, std::memory_order_relaxed);
                      });
                    }));
  }
  return static_cast<double>(kRegionBytes) / best;
}

// Bytes a second that the calling thread reads from its core's caches, in the fastest trial.
double CacheBandwidth() {
  AlignedBuffer buffer(kCachedBytes);
  std::memset(buffer.data(), 1, buffer.bytes());
  const Fold fold = FastestFold();
  std::atomic<uint64_t> sink{0};
  double best = 1e9;
  for (size_t trial = 0; trial < kReadTrials; ++trial) {
    best = std::min(best, SecondsOf([&] {
                      for (int i = 0; i < kCachedReads; ++i) {
                        const auto* data = static_cast<const std::byte*>(buffer.data());
                        sink.fetch_xor(fold(data, kCachedBytes), std::memory_order_relaxed);
                      }
                    }));
  }
  return static_cast<double>(kCachedBytes) * kCachedReads / best;
}

}  // namespace

double SecondsOf(absl::FunctionRef<void()> work) {
  const absl::Time start = RealClock().Now();
  work();
  return absl::ToDoubleSeconds(RealClock().Now() - start);
}

MachineRoofs MeasureRoofs(const kernels::Backend& backend, ComputePool& pool) {
  MachineRoofs roofs;
  const int threads = pool.num_threads();
  // What all threads do together of something that each measures for itself.
  const auto measure = [&](double (*rate)()) {
    if (rate == nullptr) return 0.0;
    std::vector<double> rates(static_cast<size_t>(threads));
    pool.parallel()(threads, [&](int64_t task, int) { rates[static_cast<size_t>(task)] = rate(); });
    return std::accumulate(rates.begin(), rates.end(), 0.0);
  };
  roofs.flops = 2 * measure(backend.peak_rate);  // two operations for each multiply-add
  roofs.int8_flops = 2 * measure(backend.int8_peak_rate);
  roofs.bytes_per_second = MemoryBandwidth(pool.parallel());
  roofs.cache_bytes_per_second = measure(&CacheBandwidth);
  return roofs;
}

}  // namespace tandem::engine
