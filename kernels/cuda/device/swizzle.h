// Where a 16-byte chunk of a tile's row lies in shared memory: chunks of a row are permuted by the
// row's number, so that the eight rows a matrix load touches lie in different banks.
#pragma once

#include "kernels/cuda/device/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// Byte offset of chunk `chunk` of row `row`, rows of kRowChunks (a power of two, at least 8)
// chunks.
template <int kRowChunks>
TANDEM_BOTH constexpr int SwizzledOffset(int row, int chunk) {
  constexpr int kMask = kRowChunks < 8 ? kRowChunks - 1 : 7;
  return (row * kRowChunks + (chunk ^ (row & kMask))) * 16;
}

}  // namespace tandem::kernels::TANDEM_SIMT
