// TileRegisters (tile_registers.h) on AMX's own tiles.
//
// The instructions are written as assembly: g++ 12's intrinsics do not say what memory they read,
// so the compiler may drop stores before them, even those of a configuration. Neither g++ 12 nor
// clang 14 uses tiles by itself, so the assembly needs no clobbers. REQUIRES: the processor has
// AMX-TILE, AMX-BF16 and AMX-INT8, and the system granted the process the tile state
// (kernels/dispatch/amx_detection.h). Thread safety: as tile_registers.h.
#pragma once

namespace tandem::kernels::TANDEM_ISA {

inline constexpr bool kHasTiles = true;

class TileRegisters {
 public:
  TANDEM_INLINE TileRegisters() {}
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  // Release the tiles: a context switch of this thread then saves 8 KB less.
  TANDEM_INLINE ~TileRegisters() { asm volatile("tilerelease" ::: "memory"); }

  TANDEM_INLINE void Configure(const TileConfig& config) {
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  template <int kTile>
  TANDEM_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  TANDEM_INLINE void Load(const TileMemory<const char>& rows, const MemoryRange&) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows.first), "r"(rows.stride)
                 : "memory");
  }
  template <int kTile>
  TANDEM_INLINE void LoadOnce(const TileMemory<const char>& rows, const MemoryRange&) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows.first), "r"(rows.stride)
                 : "memory");
  }
  template <int kTile>
  TANDEM_INLINE void Store(const TileMemory<char>& rows, const MemoryRange&) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(rows.first), "r"(rows.stride)
                 : "memory");
  }
  // AT&T order: the second factor, the first factor, the sum.
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kRows), "i"(kWeights));
  }
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE void DotInt8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kRows), "i"(kWeights));
  }
};

}  // namespace tandem::kernels::TANDEM_ISA
