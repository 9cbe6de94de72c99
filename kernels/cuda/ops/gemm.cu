// y[m, n] = Σ_k x[m, k] · w[n, k], bf16 operands, fp32 accumulators, for every projection
// (kernels/api/device_gemm.h, kBf16).
//
// Grid: x = tiles of n, y = tiles of m. A block walks k in tiles of `tile.k`; operands come by
// 16-byte asynchronous copies into `tile.stages` stages of shared memory. A row's bits depend on
// that row and on w alone (docs/NUMERICS.md, GEMM), whatever the tile. Bound: bytes of w for few
// rows; tensor cores for many.
#include "kernels/api/bf16.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/gemm_bf16_tile.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <gemm::Tile kTile>
struct GemmKernel : Bf16Tile<kTile> {
  using Params = DeviceGemmArgs;
  static constexpr const char* kName = "gemm kernel";
  static constexpr int kBlocksPerMultiprocessor = 1;
  using Tile = Bf16Tile<kTile>;

  TANDEM_KERNEL void Run(const Params& p) {
    float acc[Tile::kTilesM][Tile::kTilesN][4] = {};
    const auto row_of = [&](const Bf16Bits* matrix, int first, int rows) {
      return [=, &p](int row) {
        return first + row < rows ? matrix + int64_t{first + row} * p.k : nullptr;
      };
    };
    Tile::Accumulate(p.k, p.x, row_of(p.x, BlockY() * kTile.m, p.rows),
                     row_of(p.w, BlockX() * kTile.n, p.n), acc);
    Tile::Store(p, acc, [](int) { return FloatPair{1.0f, 1.0f}; });
  }
};

}  // namespace

void Gemm(const DeviceGemmArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.k % 8 == 0 && args.type != DeviceWeightType::kFp8Rows);
  KERNEL_REQUIRE(args.gated == nullptr || (args.n % 16 == 0 && !args.add_to_y));
  if (args.type == DeviceWeightType::kInt8) return GemmInt8(args, stream);
  if (args.type != DeviceWeightType::kBf16) return GemmWeightOnly(args, stream);
  LaunchOneOf<GemmKernel, gemm::kBf16Tiles>(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
