// Where a 16-byte chunk of a tile's row lies in shared memory: chunks of a row are permuted by the
// row's number, so that the eight rows a matrix load touches lie in different banks.
#pragma once

#include "kernels/cuda/device/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// Byte offset of chunk `chunk` of row `row`, rows of kRowChunks (a power of two) chunks. Rows of
// fewer than eight chunks share the 128 bytes that the banks serve at once, and their permutation.
template <int kRowChunks>
TANDEM_BOTH constexpr int SwizzledOffset(int row, int chunk) {
  constexpr int kMask = kRowChunks < 8 ? kRowChunks - 1 : 7;
  constexpr int kRowsTogether = kRowChunks < 8 ? 8 / kRowChunks : 1;
  return (row * kRowChunks + (chunk ^ (row / kRowsTogether & kMask))) * 16;
}

}  // namespace tandem::kernels::TANDEM_SIMT
