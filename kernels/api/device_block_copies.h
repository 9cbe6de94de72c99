// Copies of whole KV blocks within a device's memory: from block to block of a layer's region
// (DeviceOps::copy_blocks), and between blocks and a contiguous payload of a KV transfer
// (DeviceOps::move_cells).
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

namespace tandem::kernels {

// Copies block pairs[i].from to block pairs[i].to (vLLM's copy_blocks).
struct BlockPair {
  int32_t from = 0;
  int32_t to = 0;
};
struct DeviceCopyBlocksArgs {
  char* base = nullptr;              // of a layer's region
  int64_t block_bytes = 0;           // a multiple of 16
  const BlockPair* pairs = nullptr;  // [num_pairs]; no block is both read and written
  int32_t num_pairs = 0;
};

// Gathers cells into a contiguous payload, or scatters a payload to cells. A cell is one layer's
// part of a KV block.
inline constexpr int32_t kMoveCellsMax = 128;
struct DeviceMoveCellsArgs {
  char* payload = nullptr;  // [count][cell_bytes], on a boundary of 16 bytes
  int64_t cell_bytes = 0;   // a multiple of 16
  int32_t count = 0;        // at most kMoveCellsMax
  bool gather = true;
  // [count] addresses on boundaries of 16 bytes. REQUIRES: distinct, unless `gather`.
  char* cells[kMoveCellsMax] = {};
};

}  // namespace tandem::kernels
