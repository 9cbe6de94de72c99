// Where a 16-byte chunk of a tile's row lies in shared memory. The row's number permutes its
// chunks, so that the eight rows a matrix load touches lie in different banks. Thread safety: pure
// functions.
#pragma once

#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// Byte offset of chunk `chunk` of row `row`, rows of kRowChunks (a power of two) chunks. Rows of
// fewer than eight chunks share the 128 bytes that the banks serve at once, and their permutation.
template <int kRowChunks>
TANDEM_BOTH constexpr int SwizzledOffset(int row, int chunk) {
  constexpr int kMask = kRowChunks < 8 ? kRowChunks - 1 : 7;
  constexpr int kRowsTogether = kRowChunks < 8 ? 8 / kRowChunks : 1;
  return (row * kRowChunks + (chunk ^ (row / kRowsTogether & kMask))) * 16;
}

// The same for tiles that are not read by matrix loads: eight rows' units of kUnitChunks chunks,
// four lanes to a row, lie in different banks. For rows of any power of two of units.
template <int kRowChunks, int kUnitChunks>
TANDEM_BOTH constexpr int SpreadOffset(int row, int chunk) {
  constexpr int kUnits = kRowChunks / kUnitChunks;  // of a row
  constexpr int kBankUnits = 8 / kUnitChunks;       // of all banks
  const int turn = kUnits >= kBankUnits ? row % kBankUnits : row / (kBankUnits / kUnits) % kUnits;
  return (row * kRowChunks + (chunk ^ turn * kUnitChunks)) * 16;
}

}  // namespace tandem::kernels::TANDEM_SIMT
