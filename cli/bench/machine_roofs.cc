#include "cli/bench/machine_roofs.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/engine/aligned_buffer.h"
#include "common/runtime/clock.h"

namespace tandem::engine {
namespace {

// Larger than any cache, so that reading it is reading memory.
constexpr size_t kMemoryBytes = size_t{512} << 20;
// A thread's share fits the L2 cache of any supported core, and not its L1.
constexpr size_t kCachedBytesEach = size_t{256} << 10;

uint64_t Fold(const uint64_t* data, size_t words) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i < words; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] ^= data[i + lane];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  return all;
}

// Bytes a second that all threads read together. Each task reads its piece of `bytes` `times` over.
double ReadBandwidth(const kernels::ParallelFor& parallel, size_t bytes, int64_t pieces,
                     int times) {
  AlignedBuffer buffer(bytes);
  std::memset(buffer.data(), 1, bytes);
  std::atomic<uint64_t> sink{0};
  double best = 1e9;
  for (int trial = 0; trial < 4; ++trial) {
    best = std::min(best, SecondsOf([&] {
                      parallel(pieces, [&](int64_t piece, int) {
                        const size_t words = bytes / static_cast<size_t>(pieces) / sizeof(uint64_t);
                        const uint64_t* data = static_cast<const uint64_t*>(buffer.data()) +
                                               static_cast<size_t>(piece) * words;
                        for (int i = 0; i < times; ++i) {
                          sink.fetch_xor(Fold(data, words), std::memory_order_relaxed);
                        }
                      });
                    }));
  }
  return static_cast<double>(bytes) * times / best;
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
  // Two operations for each multiply-add that all threads do together.
  const auto measure = [&](double (*rate)()) {
    if (rate == nullptr) return 0.0;
    std::vector<double> rates(static_cast<size_t>(threads));
    pool.parallel()(threads, [&](int64_t task, int) { rates[static_cast<size_t>(task)] = rate(); });
    return 2 * std::accumulate(rates.begin(), rates.end(), 0.0);
  };
  roofs.flops = measure(backend.peak_rate);
  roofs.int8_flops = measure(backend.int8_peak_rate);
  roofs.bytes_per_second = ReadBandwidth(pool.parallel(), kMemoryBytes, 256, 1);
  roofs.cache_bytes_per_second =
      ReadBandwidth(pool.parallel(), kCachedBytesEach * static_cast<size_t>(threads), threads, 200);
  return roofs;
}

}  // namespace tandem::engine
