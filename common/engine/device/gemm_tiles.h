// Which tile computes each matrix product of a model on this device. Kernels choose by shape
// (kernels/cuda/ops/gemm_config.h). A search instead times every tile, once, and keeps the fastest
// in a file for the next start.
//
// A choice affects speed and no bit: every tile sums k in the same order (docs/adr/0017, 0018,
// 0024). So no failure here can fail a start or change an answer, and a warning says why it
// happened. If a product cannot be timed, the kernels choose its tile by shape. If a file cannot be
// read, a new search replaces it. If a file cannot be written, the engine uses the search's result
// from memory.
//
// A file (weight_file.h: versioned, checksummed, replaced as a whole) holds a byte for each product
// and bucket of row counts. Its key names in words everything that the times depend on: device,
// software, kernels, their tiles, buckets and shapes.
// Thread safety: GemmTiles is const once made; one thread calls the functions. Owner: the device
// engine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/device/device_weights.h"
#include "kernels/api/device.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

// The row counts that a search times. Each stands for all counts from the one before it. Above the
// last, every tile is full, so kernels choose by shape.
inline constexpr int32_t kGemmRowBuckets[] = {8, 16, 32, 64, 128, 256, 512, 1024, 2048};

// The products of one shape. A step computes them one after another, each with other weights.
struct GemmProduct {
  kernels::DeviceWeightType type = kernels::DeviceWeightType::kBf16;
  int32_t n = 0, k = 0;
  bool gated = false;
  bool adds = false;                         // to what y holds
  int32_t rows_max = 0;                      // larger buckets are not timed
  std::vector<const DeviceMatrix*> weights;  // not empty
};
// The products of a model, in the order of their first use. The output matrix is timed with at most
// kOutputRowsMax rows, because its results are large.
inline constexpr int32_t kOutputRowsMax = 256;
std::vector<GemmProduct> GemmProductsOf(const DeviceWeights& weights);

class GemmTiles {
 public:
  // The tile for a call, by its type, shape and rows; −1 (the kernel chooses) where none was timed.
  int32_t TileFor(const kernels::DeviceGemmArgs& args) const;

  struct Entry {
    kernels::DeviceWeightType type = kernels::DeviceWeightType::kBf16;
    int32_t n = 0, k = 0;
    bool gated = false;
    bool adds = false;
    std::vector<int8_t> tiles;  // one for each of the first buckets
  };
  std::vector<Entry> entries;
};

// Milliseconds that a device takes for one of these calls, when they run one after another.
using GemmTimer =
    std::function<absl::StatusOr<double>(absl::Span<const kernels::DeviceGemmArgs> calls)>;
// A timer that runs the calls on `stream` from a graph (kernels/api/device_timing.h).
GemmTimer TimeGemmsInGraph(kernels::Device& device, kernels::DeviceStream& stream);

// Times every tile that fits the device at every bucket and takes the fastest, or the first of
// equal ones. The timed calls read the weights of more layers than the L2 can hold, as a step does.
// Errors: the timer's and the device's.
absl::StatusOr<GemmTiles> SearchGemmTiles(const std::vector<GemmProduct>& products,
                                          kernels::Device& device, const GemmTimer& timer);

// The key of the file: names everything that the times depend on.
std::string GemmTilesKey(const std::vector<GemmProduct>& products, const kernels::Device& device);

struct GemmTilesOptions {
  // "by-shape": no search. "auto": reads the file that an earlier start left in `user_folder`, or
  // searches and writes one. "search": searches and replaces the file. Any other text is a folder,
  // which "auto" then uses.
  std::string choice = "by-shape";
  std::string user_folder;  // empty: no file
  GemmTimer timer;          // empty: TimeGemmsInGraph
};
GemmTiles ChooseGemmTiles(const DeviceWeights& weights, const GemmTilesOptions& options,
                          kernels::Device& device, const kernels::ParallelFor& parallel);

}  // namespace tandem::engine
