// Operators on rows: embedding, RMSNorm, gated activation, block copies. All are bound by memory.
//
// Grid: one block of 256 threads for each row (gated: for each row and 1024 columns). A row's sum
// runs in 256 strided lanes and a fixed tree, whatever the number of rows.
#include "kernels/api/require.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int kRowThreads = 256;

struct EmbedKernel {
  using Params = DeviceEmbedArgs;
  static constexpr const char* kName = "embed kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const Bf16Bits* from = p.table + int64_t{p.tokens[row]} * p.size;
    float* to = p.y + row * p.size;
    for (int i = ThreadIndex(); i < p.size; i += kThreads) to[i] = ToFloat({from[i]}) * p.scale;
  }
};

// y = x / sqrt(mean(x²) + eps) · weight
struct RmsNormKernel {
  using Params = DeviceRmsNormArgs;
  static constexpr const char* kName = "rms_norm kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const int64_t from = p.gather == nullptr ? row : p.gather[row];
    const float* x = p.x + from * p.size;
    float squares = 0;
    for (int i = ThreadIndex(); i < p.size; i += kThreads) squares = Fma(x[i], x[i], squares);
    squares = BlockSum(squares, reinterpret_cast<float*>(SharedMemory()));
    const float factor = 1.0f / Sqrt(squares / static_cast<float>(p.size) + p.eps);
    for (int i = ThreadIndex(); i < p.size; i += kThreads) {
      const float value = Mul(Mul(x[i], factor), p.weight[i]);
      const int64_t at = row * p.size + i;
      if (p.y != nullptr) p.y[at] = ToBf16(value).bits;
      if (p.residual != nullptr) p.residual[at] = Add(p.residual[at], value);
    }
  }
};

struct GatedKernel {
  using Params = DeviceGatedArgs;
  static constexpr const char* kName = "gated activation kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kColumnsPerBlock = 1024;

  TANDEM_KERNEL void Run(const Params& p) {
    const int64_t row = BlockX();
    const float* gate = p.gate_up + row * 2 * p.size;
    const int first = BlockY() * kColumnsPerBlock;
    const int end = first + kColumnsPerBlock < p.size ? first + kColumnsPerBlock : p.size;
    for (int i = first + ThreadIndex(); i < end; i += kThreads) {
      p.y[row * p.size + i] = ToBf16(Gate(p.activation, gate[i], gate[p.size + i])).bits;
    }
  }
};

struct alignas(16) Chunk {
  uint32_t word[4];
};

struct CopyBlocksKernel {
  using Params = DeviceCopyBlocksArgs;
  static constexpr const char* kName = "copy_blocks kernel";
  static constexpr int kThreads = kRowThreads;
  static constexpr int kBlocksPerMultiprocessor = 1;

  TANDEM_KERNEL void Run(const Params& p) {
    const BlockPair pair = p.pairs[BlockX()];
    const Chunk* from = reinterpret_cast<const Chunk*>(p.base + pair.from * p.block_bytes);
    Chunk* to = reinterpret_cast<Chunk*>(p.base + pair.to * p.block_bytes);
    const int64_t chunks = p.block_bytes / static_cast<int64_t>(sizeof(Chunk));
    for (int64_t i = ThreadIndex(); i < chunks; i += kThreads) to[i] = from[i];
  }
};

// Between a payload and the cells it is made of; a block for each 16 KiB of a cell, so that a few
// large cells occupy many multiprocessors.
struct MoveCellsKernel {
  using Params = DeviceMoveCellsArgs;
  static constexpr const char* kName = "move_cells kernel";
  static constexpr int kThreads = kRowThreads;
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

void Embed(const DeviceEmbedArgs& args, DeviceStream& stream) {
  Launch<EmbedKernel>({.x = args.rows, .threads = kRowThreads}, args, stream);
}

void RmsNorm(const DeviceRmsNormArgs& args, DeviceStream& stream) {
  constexpr size_t kSharedBytes = kRowThreads / kWarpSize * sizeof(float);
  Launch<RmsNormKernel>({.x = args.rows, .threads = kRowThreads, .shared_bytes = kSharedBytes},
                        args, stream);
}

void Gated(const DeviceGatedArgs& args, DeviceStream& stream) {
  const int columns = GatedKernel::kColumnsPerBlock;
  Launch<GatedKernel>(
      {.x = args.rows, .y = (args.size + columns - 1) / columns, .threads = kRowThreads}, args,
      stream);
}

void CopyBlocks(const DeviceCopyBlocksArgs& args, DeviceStream& stream) {
  Launch<CopyBlocksKernel>({.x = args.num_pairs, .threads = kRowThreads}, args, stream);
}

void MoveCells(const DeviceMoveCellsArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.cell_bytes % sizeof(Chunk) == 0 && args.count <= kMoveCellsMax);
  constexpr int64_t kBytesPerBlock = MoveCellsKernel::kChunksPerBlock * sizeof(Chunk);
  Launch<MoveCellsKernel>(
      {.x = args.count,
       .y = static_cast<int>((args.cell_bytes + kBytesPerBlock - 1) / kBytesPerBlock),
       .threads = kRowThreads},
      args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
