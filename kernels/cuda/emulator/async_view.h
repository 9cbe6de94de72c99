// Shared memory as the asynchronous units (bulk copies and warpgroup products) see it.
// Thread safety: threads of the emulated block, which run one at a time on one host thread.
// Owner: the block, whose memory the pointers name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/require.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace tandem::kernels::emulated {

// The byte at window address `address` in the asynchronous view. REQUIRES: [address, address +
// bytes) lies in the block's shared memory.
inline char* AsyncAt(uint32_t address, int bytes) {
  const Block& block = *CurrentThread().block;
  const size_t offset = address - block.window_address;
  KERNEL_REQUIRE(address >= block.window_address &&
                 offset + static_cast<size_t>(bytes) <= block.shared_bytes);
  return block.async_view + offset;
}

// Where swizzling puts the byte at `address`: it permutes the eight 16-byte chunks of 128 bytes by
// the address bits above them.
inline uint32_t Swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

}  // namespace tandem::kernels::emulated
