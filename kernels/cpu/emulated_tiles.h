// TileRegisters (tile_registers.h) in plain C++, as Intel's Software Developer's Manual (volume 2,
// TDPBF16PS, TDPBSSD, LDTILECFG, TILELOADD, TILESTORED) says the instructions behave. Where the
// processor would raise a fault, or memory lies outside the caller's range, the process ends with a
// message.
//
// The manual leaves one case open: this code keeps a sum that rounds up to the least normal number
// from below it. Thread safety: as tile_registers.h.
#pragma once

#include <cstring>

#include "kernels/api/require.h"

namespace tandem::kernels::TANDEM_ISA {

inline constexpr bool kHasTiles = true;

struct EmulatedTile {
  alignas(64) unsigned char bytes[kTileRows][kTileRowBytes];
  int64_t rows;
  int64_t row_bytes;
};

// Numbers below the normal ones count as zero, with their sign.
TANDEM_INLINE float FlushTiny(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}
// Half `half` (0: even element) of a dword of two bf16, widened.
TANDEM_INLINE float WidenHalf(uint32_t pair, int half) {
  const uint32_t bits = half == 0 ? pair << 16 : pair & 0xffff0000u;
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return FlushTiny(x);
}

// Shapes that the processor accepts for C += A·B.
TANDEM_INLINE void CheckShapes(const EmulatedTile& c, const EmulatedTile& a,
                               const EmulatedTile& b) {
  KERNEL_REQUIRE(&c != &a && &c != &b && &a != &b);
  KERNEL_REQUIRE(c.rows > 0 && a.rows > 0 && b.rows > 0);  // configured
  KERNEL_REQUIRE(c.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0);
  KERNEL_REQUIRE(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes / 4 == b.rows);
}
// Rows of a result beyond the shape become zero.
TANDEM_INLINE void ZeroUpperRows(EmulatedTile* c) {
  for (int64_t m = c->rows; m < kTileRows; ++m) std::memset(c->bytes[m], 0, kTileRowBytes);
}

// Even and odd elements of the pairs are summed apart, each by fused multiply-adds with k
// ascending; then even + odd; then that is added to C. Every step rounds to nearest even, and
// flushes subnormal inputs and results to zero.
static inline void AddBf16Products(const EmulatedTile& a, const EmulatedTile& b, EmulatedTile* c) {
  constexpr int kColumns = kTileRowBytes / 4;
  alignas(64) float weights[kTileRows][2][kColumns] = {};
  for (int64_t k = 0; k < b.rows; ++k) {
    uint32_t pairs[kColumns];
    std::memcpy(pairs, b.bytes[k], sizeof(pairs));
    for (int n = 0; n < kColumns; ++n) weights[k][0][n] = WidenHalf(pairs[n], 0);
    for (int n = 0; n < kColumns; ++n) weights[k][1][n] = WidenHalf(pairs[n], 1);
  }
  for (int64_t m = 0; m < a.rows; ++m) {
    alignas(64) float even[kColumns] = {}, odd[kColumns] = {}, sum[kColumns];
    for (int64_t k = 0; k < a.row_bytes / 4; ++k) {
      uint32_t pair = 0;
      std::memcpy(&pair, a.bytes[m] + k * 4, sizeof(pair));
      const float first = WidenHalf(pair, 0), second = WidenHalf(pair, 1);
      for (int n = 0; n < kColumns; ++n) {
        even[n] = FlushTiny(__builtin_fmaf(first, weights[k][0][n], even[n]));
      }
      for (int n = 0; n < kColumns; ++n) {
        odd[n] = FlushTiny(__builtin_fmaf(second, weights[k][1][n], odd[n]));
      }
    }
    std::memcpy(sum, c->bytes[m], sizeof(sum));
    for (int n = 0; n < kColumns; ++n) {
      sum[n] = FlushTiny(FlushTiny(sum[n]) + FlushTiny(even[n] + odd[n]));
    }
    std::memcpy(c->bytes[m], sum, static_cast<size_t>(c->row_bytes));
  }
  ZeroUpperRows(c);
}

// Sums wrap at 32 bits, as the processor's do.
static inline void AddInt8Products(const EmulatedTile& a, const EmulatedTile& b, EmulatedTile* c) {
  for (int64_t m = 0; m < a.rows; ++m) {
    for (int64_t n = 0; n < c->row_bytes / 4; ++n) {
      uint32_t sum = 0;
      std::memcpy(&sum, c->bytes[m] + n * 4, sizeof(sum));
      for (int64_t k = 0; k < a.row_bytes / 4; ++k) {
        for (int64_t i = 0; i < 4; ++i) {
          const int32_t x = static_cast<int8_t>(a.bytes[m][k * 4 + i]);
          const int32_t w = static_cast<int8_t>(b.bytes[k][n * 4 + i]);
          sum += static_cast<uint32_t>(x * w);
        }
      }
      std::memcpy(c->bytes[m] + n * 4, &sum, sizeof(sum));
    }
  }
  ZeroUpperRows(c);
}

class TileRegisters {
 public:
  TANDEM_INLINE TileRegisters() { Release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  TANDEM_INLINE void Configure(const TileConfig& config) {
    KERNEL_REQUIRE(config.palette == 1 && config.start_row == 0);
    for (uint8_t byte : config.reserved) KERNEL_REQUIRE(byte == 0);
    for (int t = kTiles; t < 16; ++t)
      KERNEL_REQUIRE(config.rows[t] == 0 && config.row_bytes[t] == 0);
    Release();
    for (int t = 0; t < kTiles; ++t) {
      KERNEL_REQUIRE(config.rows[t] <= kTileRows && config.row_bytes[t] <= kTileRowBytes);
      KERNEL_REQUIRE((config.rows[t] == 0) == (config.row_bytes[t] == 0));
      tiles_[t].rows = config.rows[t];
      tiles_[t].row_bytes = config.row_bytes[t];
    }
  }
  template <int kTile>
  TANDEM_INLINE void Zero() {
    KERNEL_REQUIRE(tiles_[kTile].rows > 0);
    std::memset(tiles_[kTile].bytes, 0, kTileBytes);
  }
  template <int kTile>
  TANDEM_INLINE void Load(const TileMemory<const char>& rows, const MemoryRange& readable) {
    EmulatedTile& tile = tiles_[kTile];
    KERNEL_REQUIRE(tile.rows > 0);
    std::memset(tile.bytes, 0, kTileBytes);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const char* row = rows.first + r * rows.stride;
      KERNEL_REQUIRE(row >= readable.begin && row + tile.row_bytes <= readable.end);
      std::memcpy(tile.bytes[r], row, static_cast<size_t>(tile.row_bytes));
    }
  }
  template <int kTile>
  TANDEM_INLINE void LoadOnce(const TileMemory<const char>& rows, const MemoryRange& readable) {
    Load<kTile>(rows, readable);
  }
  template <int kTile>
  TANDEM_INLINE void Store(const TileMemory<char>& rows, const MemoryRange& writable) const {
    const EmulatedTile& tile = tiles_[kTile];
    KERNEL_REQUIRE(tile.rows > 0);
    for (int64_t r = 0; r < tile.rows; ++r) {
      char* row = rows.first + r * rows.stride;
      KERNEL_REQUIRE(row >= writable.begin && row + tile.row_bytes <= writable.end);
      std::memcpy(row, tile.bytes[r], static_cast<size_t>(tile.row_bytes));
    }
  }
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE void DotBf16() {
    CheckShapes(tiles_[kSum], tiles_[kRows], tiles_[kWeights]);
    AddBf16Products(tiles_[kRows], tiles_[kWeights], &tiles_[kSum]);
  }
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE void DotInt8() {
    CheckShapes(tiles_[kSum], tiles_[kRows], tiles_[kWeights]);
    AddInt8Products(tiles_[kRows], tiles_[kWeights], &tiles_[kSum]);
  }

 private:
  TANDEM_INLINE void Release() { std::memset(tiles_, 0, sizeof(tiles_)); }

  EmulatedTile tiles_[kTiles];
};

}  // namespace tandem::kernels::TANDEM_ISA
