// Tile registers, the operands of matrix units, behind one seam with two implementations: the
// hardware's, on a processor with AMX (hardware_tiles.h), and an emulation of its instructions by
// their specification (emulated_tiles.h). Kernels are written once, over TileRegisters, which is
// one of the two for a whole class.
//
//   Configure(config)            shapes of all tiles; their contents become zero
//   Zero<T>()                    tile T = 0
//   Load<T>(rows, readable)      tile T's rows, `rows.stride` bytes apart
//   LoadOnce<T>(rows, readable)  Load of memory that is not needed again soon: it need not stay in
//   L1 Store<T>(rows, writable)     the same into memory DotBf16<C, A, B>()           C[m][n] +=
//   Σ_k A[m][k]·B[k][n], a dword holds a bf16 pair along k DotInt8<C, A, B>()           the same
//   for quads of signed bytes, exact in int32
// Eight tiles of up to 16 rows of 64 bytes. A: rows of activations. B: row i holds the i-th pair
// (quad) of k for sixteen features. C: rows by sixteen features.
// Thread safety: tiles belong to a thread. One thread makes, uses and destroys an object, and
// afterwards holds no tiles. A thread has one object at a time.
#pragma once

#include <cstdint>

#include "kernels/cpu/inline.h"

namespace tandem::kernels::TANDEM_ISA {

inline constexpr int kTiles = 8;
inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kTileRowBytes = 64;
inline constexpr int64_t kTileBytes = kTileRows * kTileRowBytes;

// The bytes that LDTILECFG reads. Tiles that are not used have 0 rows of 0 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tile 0 to 7; 0 behind them
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// The memory of a tile's rows.
template <typename Byte>
struct TileMemory {
  Byte* first;
  int64_t stride;  // bytes between rows
};

// The bytes that an operation may access. The emulation checks every access against them.
struct MemoryRange {
  const char* begin;
  const char* end;
};

}  // namespace tandem::kernels::TANDEM_ISA

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define TANDEM_TILE_CLASS
#include "kernels/cpu/hardware_tiles.h"
#elif defined(TANDEM_EMULATED_TILES)
#define TANDEM_TILE_CLASS
#include "kernels/cpu/emulated_tiles.h"
#else
namespace tandem::kernels::TANDEM_ISA {
inline constexpr bool kHasTiles = false;
}
#endif
