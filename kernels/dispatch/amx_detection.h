// Whether this process may use AMX: what the processor reports, what state the system saves, and
// whether the system grants the process permission. No AMX instruction runs here.
// Thread safety: any thread; the permission is the process's.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::kernels {

// Found facts; a struct of its own so that machines that are not at hand can be judged in tests.
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

// Of this processor.
AmxFacts FindAmxFacts();
// Why AMX cannot be used: "the processor has no AMX-BF16"; empty when it can, as far as `facts` go.
std::string JudgeAmxFacts(const AmxFacts& facts);
// Asks the system for the tiles' state, for all threads of the process, present and to come. Why it
// refuses: "the system refuses the state of tiles: Operation not permitted"; empty when it does
// not. REQUIRES: JudgeAmxFacts found nothing.
std::string RequestTileState();

}  // namespace tandem::kernels
