// Copies of KV blocks within device memory (kernels/api/device_block_copies.h), 16 bytes a thread
// at a time. Bound by memory.
//
// Grid: copy_blocks has one block of 256 threads for each pair; move_cells has one for each cell
// and 16 KiB of it.
#include "kernels/api/device_block_copies.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kCopyThreads = 256;

struct alignas(16) Chunk {
  uint32_t word[4];
};

struct CopyBlocksKernel {
  using Params = DeviceCopyBlocksArgs;
  static constexpr const char* kName = "copy_blocks kernel";
  static constexpr int kThreads = kCopyThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const BlockPair pair = p.pairs[BlockX()];
    const Chunk* from = reinterpret_cast<const Chunk*>(p.base + pair.from * p.block_bytes);
    Chunk* to = reinterpret_cast<Chunk*>(p.base + pair.to * p.block_bytes);
    const int64_t chunks = p.block_bytes / static_cast<int64_t>(sizeof(Chunk));
    for (int64_t i = ThreadIndex(); i < chunks; i += kThreads) to[i] = from[i];
  }
};

// Copies between a payload and its cells. Each block copies 16 KiB of a cell, so that a few large
// cells occupy many multiprocessors.
struct MoveCellsKernel {
  using Params = DeviceMoveCellsArgs;
  static constexpr const char* kName = "move_cells kernel";
  static constexpr int kThreads = kCopyThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int64_t kChunksPerBlock = 1024;

  TANDEM_KERNEL void Run(const Params& p) {
    Chunk* cell = reinterpret_cast<Chunk*>(p.cells[BlockX()]);
    Chunk* payload = reinterpret_cast<Chunk*>(p.payload + BlockX() * p.cell_bytes);
    const Chunk* from = p.gather ? cell : payload;
    Chunk* to = p.gather ? payload : cell;
    const int64_t chunks = p.cell_bytes / static_cast<int64_t>(sizeof(Chunk));
    const int64_t first = BlockY() * kChunksPerBlock;
    const int64_t end = first + kChunksPerBlock < chunks ? first + kChunksPerBlock : chunks;
    for (int64_t i = first + ThreadIndex(); i < end; i += kThreads) to[i] = from[i];
  }
};

}  // namespace

void CopyBlocks(const DeviceCopyBlocksArgs& args, DeviceStream& stream) {
  Launch<CopyBlocksKernel>({.x = args.num_pairs, .threads = kCopyThreads}, args, stream);
}

void MoveCells(const DeviceMoveCellsArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.cell_bytes % sizeof(Chunk) == 0 && args.count <= kMoveCellsMax);
  constexpr int64_t kBytesPerBlock = MoveCellsKernel::kChunksPerBlock * sizeof(Chunk);
  Launch<MoveCellsKernel>(
      {.x = args.count,
       .y = static_cast<int>((args.cell_bytes + kBytesPerBlock - 1) / kBytesPerBlock),
       .threads = kCopyThreads},
      args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
