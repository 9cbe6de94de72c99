// Whether this process may use AMX: what the processor reports, what state the system saves, and
// whether the system grants the process permission. No AMX instruction runs here.
// Thread safety: any thread; the permission is the process's.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::kernels {

// What the processor and the system report. It is a struct so that tests can describe other
// machines.
struct AmxFacts {
  bool avx512 = false;  // F, DQ, BW, VL and VNNI, kept by the system
  bool tile = false;    // CPUID: AMX-TILE, AMX-BF16, AMX-INT8
  bool bf16 = false;
  bool int8 = false;
  bool xgetbv = false;  // the system lets programs ask what state it keeps
  uint64_t kept = 0;    // XCR0
  // Palette 1 and the limits of the products (CPUID leaves 1Dh and 1Eh).
  uint32_t tile_bytes = 0, tile_row_bytes = 0, tiles = 0, tile_rows = 0;
  uint32_t product_rows = 0, product_row_bytes = 0;
};

// The facts of this processor.
AmxFacts FindAmxFacts();
// Why `facts` rule AMX out: "the processor has no AMX-BF16"; empty where they do not.
std::string JudgeAmxFacts(const AmxFacts& facts);
// Asks the system for the tile state, for all present and future threads of the process. Returns
// why the system refuses ("the system refuses access to the tile registers: Operation not
// permitted"), or an empty string. REQUIRES: JudgeAmxFacts returned an empty string.
std::string RequestTileState();

}  // namespace tandem::kernels
