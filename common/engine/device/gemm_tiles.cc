#include "common/engine/device/gemm_tiles.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/engine/weight_file.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_timing.h"
#include "xxhash.h"

namespace tandem::engine {
namespace {

using kernels::DeviceBuffer;
using kernels::DeviceGemmArgs;
using kernels::DeviceWeightType;

// Timed runs of a tile. The median counts.
constexpr int kTimedRuns = 3;
// Calls in one run: enough to hide a launch behind computation, and few enough to be quick.
constexpr int kCallsMin = kernels::kTimedCallsMin, kCallsMax = 64;
// The byte that fills scratch memory: it makes bf16, e4m3 and fp32 numbers of ordinary size, and
// int8 numbers that are not 0.
constexpr int kScratchByte = 0x3c;

// What a product does with its sums.
enum class Output { kStored, kAdded, kGated };

size_t BucketsOf(int32_t rows_max) {
  const auto* end =
      std::upper_bound(std::begin(kGemmRowBuckets), std::end(kGemmRowBuckets), rows_max);
  return static_cast<size_t>(end - std::begin(kGemmRowBuckets));
}

// Tiles of a type that the device has shared memory for, by index.
std::vector<int32_t> AdmissibleTiles(DeviceWeightType type, const kernels::Device& device) {
  const int64_t shared = device.properties().shared_bytes_per_block_max;
  std::vector<int32_t> tiles;
  for (int32_t i = 0; device.ops().gemm_tile(type, i).shared_bytes > 0; ++i) {
    if (static_cast<int64_t>(device.ops().gemm_tile(type, i).shared_bytes) <= shared) {
      tiles.push_back(i);
    }
  }
  return tiles;
}

// Operands and results of the largest call.
struct Scratch {
  DeviceBuffer x, x_rounded, x_scales, y;
};

absl::StatusOr<Scratch> AllocateScratch(const std::vector<GemmProduct>& products,
                                        kernels::Device& device, kernels::DeviceStream& stream) {
  size_t x = 0, x_rounded = 0, x_scales = 0, y = 0;
  for (const GemmProduct& product : products) {
    const size_t rows = static_cast<size_t>(product.rows_max);
    x = std::max(x, rows * static_cast<size_t>(product.k) * sizeof(kernels::Bf16Bits));
    y = std::max(y, rows * static_cast<size_t>(product.n) * sizeof(float));
    const kernels::DeviceRoundedBytes rounded =
        kernels::RoundedBytesOf(product.type, product.rows_max, product.k);
    x_rounded = std::max(x_rounded, rounded.values);
    x_scales = std::max(x_scales, rounded.scales);
  }
  Scratch scratch;
  for (const auto& [buffer, bytes] :
       {std::pair(&scratch.x, x), std::pair(&scratch.x_rounded, x_rounded),
        std::pair(&scratch.x_scales, x_scales), std::pair(&scratch.y, y)}) {
    ASSIGN_OR_RETURN(*buffer, device.Allocate(DeviceBuffer::Kind::kDevice, bytes));
    if (bytes > 0) stream.Fill(buffer->data(), kScratchByte, bytes);
  }
  RETURN_IF_ERROR(stream.Synchronize());
  return scratch;
}

// Calls with the weights of one layer after the other, until they are twice the L2's size.
std::vector<DeviceGemmArgs> CallsOf(const GemmProduct& product, int32_t rows,
                                    const Scratch& scratch, const kernels::DeviceProperties& of) {
  const size_t weight_bytes = std::max<size_t>(1, product.weights[0]->values.bytes());
  const size_t wanted = 2 * static_cast<size_t>(of.l2_bytes) / weight_bytes + 1;
  const size_t count = std::clamp<size_t>(wanted, kCallsMin, kCallsMax);
  std::vector<DeviceGemmArgs> calls(count);
  for (size_t i = 0; i < count; ++i) {
    const DeviceMatrix& w = *product.weights[i % product.weights.size()];
    DeviceGemmArgs& args = calls[i];
    args.type = w.type;
    args.x = scratch.x.as<kernels::Bf16Bits>();
    args.w = w.values.as<kernels::Bf16Bits>();
    args.packed = w.values.data();
    args.scales = w.scales.data();
    args.x_rounded = scratch.x_rounded.data();
    args.x_scales = scratch.x_scales.as<float>();
    args.rows = rows;
    args.n = w.n;
    args.k = w.k;
    args.y = scratch.y.as<float>();
    args.add_to_y = product.adds;
    if (product.gated) args.gated = scratch.y.as<kernels::Bf16Bits>();
    args.multiprocessors = of.multiprocessors;
  }
  return calls;
}

absl::StatusOr<int8_t> FastestTile(std::vector<DeviceGemmArgs> calls,
                                   absl::Span<const int32_t> tiles, const GemmTimer& timer) {
  int8_t fastest = -1;
  double least_ms = 0;
  for (const int32_t tile : tiles) {
    for (DeviceGemmArgs& call : calls) call.tile = tile;
    ASSIGN_OR_RETURN(const double ms, timer(calls));
    if (fastest >= 0 && ms >= least_ms) continue;
    fastest = static_cast<int8_t>(tile);
    least_ms = ms;
  }
  return fastest;
}

GemmTiles::Entry EntryOf(const GemmProduct& product) {
  return {product.type, product.n, product.k, product.gated, product.adds, {}};
}

std::vector<std::byte> ToBytes(const GemmTiles& tiles) {
  std::vector<std::byte> bytes;
  for (const GemmTiles::Entry& entry : tiles.entries) {
    for (const int8_t tile : entry.tiles) bytes.push_back(static_cast<std::byte>(tile));
  }
  return bytes;
}

size_t BytesOf(const std::vector<GemmProduct>& products) {
  size_t bytes = 0;
  for (const GemmProduct& product : products) bytes += BucketsOf(product.rows_max);
  return bytes;
}

// Reads a file's payload. Errors: kDataLoss for a tile that the device does not have.
absl::StatusOr<GemmTiles> FromBytes(absl::Span<const std::byte> bytes,
                                    const std::vector<GemmProduct>& products,
                                    const kernels::Device& device) {
  GemmTiles tiles;
  for (const GemmProduct& product : products) {
    const std::vector<int32_t> admissible = AdmissibleTiles(product.type, device);
    GemmTiles::Entry& entry = tiles.entries.emplace_back(EntryOf(product));
    for (size_t i = BucketsOf(product.rows_max); i > 0; --i) {
      const auto tile = static_cast<int8_t>(bytes.front());
      bytes.remove_prefix(1);
      if (std::find(admissible.begin(), admissible.end(), tile) == admissible.end()) {
        return absl::DataLossError(absl::StrCat("names tile ", tile, " for products of ", product.n,
                                                "x", product.k,
                                                ", which this device does not have"));
      }
      entry.tiles.push_back(tile);
    }
  }
  return tiles;
}

// The file's path; empty: no file is kept.
std::string PathOf(const GemmTilesOptions& options, const std::string& key) {
  const bool named = options.choice != "auto" && options.choice != "search";
  const std::string& folder = named ? options.choice : options.user_folder;
  if (folder.empty()) return "";
  const std::string digest = absl::StrFormat("%016x", XXH3_64bits(key.data(), key.size()));
  return (std::filesystem::path(folder) / absl::StrCat("gemm-tiles.", digest)).string();
}

// The tiles that an earlier start found. Errors: as OpenWeightFile; kDataLoss.
absl::StatusOr<GemmTiles> ReadTiles(const std::string& path, const std::string& key,
                                    const std::vector<GemmProduct>& products,
                                    const kernels::Device& device,
                                    const kernels::ParallelFor& parallel) {
  ASSIGN_OR_RETURN(const auto file, OpenWeightFile(path, {key, BytesOf(products)}, parallel));
  absl::StatusOr<GemmTiles> tiles = FromBytes(file->payload(), products, device);
  if (tiles.ok()) return tiles;
  return absl::DataLossError(absl::StrCat(path, ": ", tiles.status().message()));
}

void KeepTiles(const std::string& path, const std::string& key, const GemmTiles& tiles,
               const kernels::ParallelFor& parallel) {
  if (path.empty() || tiles.entries.empty()) return;
  absl::Status status =
      absl::InvalidArgumentError("the key that describes the device and the shapes is too long");
  if (key.size() <= kWeightFileKeyBytesMax) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    // WriteWeightFile keeps a good file for the same key, so remove it first.
    std::filesystem::remove(path, ignored);
    status = WriteWeightFile(path, key, ToBytes(tiles), parallel).status();
  }
  if (status.ok()) return;
  Log(LogLevel::kWarning, "cannot write the tiles of matrix products",
      {{"path", path}, {"why", status.ToString()}});
}

}  // namespace

std::vector<GemmProduct> GemmProductsOf(const DeviceWeights& weights) {
  std::vector<GemmProduct> products;
  const auto add = [&products](const DeviceMatrix& w, Output output, int32_t rows_max) {
    const bool gated = output == Output::kGated, adds = output == Output::kAdded;
    auto found = std::find_if(products.begin(), products.end(), [&](const GemmProduct& other) {
      return other.type == w.type && other.n == w.n && other.k == w.k && other.gated == gated &&
             other.adds == adds;
    });
    if (found == products.end()) {
      products.push_back({w.type, w.n, w.k, gated, adds, rows_max, {}});
      found = products.end() - 1;
    }
    found->rows_max = std::max(found->rows_max, rows_max);
    found->weights.push_back(&w);
  };
  // A norm behind a projection takes its result; without one, the residual does.
  const auto projected = [](const DeviceBuffer& norm) {
    return norm.bytes() > 0 ? Output::kStored : Output::kAdded;
  };
  const int32_t rows_max = *(std::end(kGemmRowBuckets) - 1);
  for (const DeviceLayerWeights& layer : weights.layers) {
    add(layer.qkv, Output::kStored, rows_max);
    add(layer.o, projected(layer.post_attention_norm), rows_max);
    add(layer.gate_up, Output::kGated, rows_max);
    add(layer.down, projected(layer.post_ffn_norm), rows_max);
  }
  add(weights.output_matrix(), Output::kStored, kOutputRowsMax);
  return products;
}

int32_t GemmTiles::TileFor(const DeviceGemmArgs& args) const {
  for (const Entry& entry : entries) {
    if (entry.type != args.type || entry.n != args.n || entry.k != args.k ||
        entry.gated != (args.gated != nullptr) || entry.adds != args.add_to_y) {
      continue;
    }
    const auto* bucket =
        std::lower_bound(std::begin(kGemmRowBuckets), std::end(kGemmRowBuckets), args.rows);
    const auto index = static_cast<size_t>(bucket - std::begin(kGemmRowBuckets));
    return index < entry.tiles.size() ? entry.tiles[index] : -1;
  }
  return -1;
}

GemmTimer TimeGemmsInGraph(kernels::Device& device, kernels::DeviceStream& stream) {
  return [&device, &stream](absl::Span<const DeviceGemmArgs> calls) {
    return kernels::TimeInGraph(
        device, stream, {static_cast<int>(calls.size()), kTimedRuns},
        [&](int call) { device.ops().gemm(calls[static_cast<size_t>(call)], stream); });
  };
}

absl::StatusOr<GemmTiles> SearchGemmTiles(const std::vector<GemmProduct>& products,
                                          kernels::Device& device, const GemmTimer& timer) {
  // Use a separate stream, so that a failure here does not fail the engine's.
  ASSIGN_OR_RETURN(const auto stream, device.NewStream());
  ASSIGN_OR_RETURN(const Scratch scratch, AllocateScratch(products, device, *stream));
  const GemmTimer in_graph = TimeGemmsInGraph(device, *stream);
  GemmTiles tiles;
  for (const GemmProduct& product : products) {
    const std::vector<int32_t> admissible = AdmissibleTiles(product.type, device);
    GemmTiles::Entry& entry = tiles.entries.emplace_back(EntryOf(product));
    for (size_t i = 0; i < BucketsOf(product.rows_max); ++i) {
      ASSIGN_OR_RETURN(const int8_t tile, FastestTile(CallsOf(product, kGemmRowBuckets[i], scratch,
                                                              device.properties()),
                                                      admissible, timer ? timer : in_graph));
      entry.tiles.push_back(tile);
    }
  }
  return tiles;
}

std::string GemmTilesKey(const std::vector<GemmProduct>& products, const kernels::Device& device) {
  const kernels::DeviceProperties& of = device.properties();
  std::string key =
      absl::StrCat("gemm tiles; device ", of.name, " sm", of.compute_major, of.compute_minor,
                   " with ", of.multiprocessors, " multiprocessors; ", of.software, "; kernels ",
                   device.ops().numerics, "; rows");
  for (const int32_t rows : kGemmRowBuckets) absl::StrAppend(&key, " ", rows);
  std::vector<DeviceWeightType> types;
  for (const GemmProduct& product : products) {
    absl::StrAppend(&key, "; ", kernels::DeviceWeightTypeName(product.type), " ", product.n, "x",
                    product.k, product.gated ? " gated" : "", product.adds ? " added" : "", " to ",
                    product.rows_max);
    if (std::find(types.begin(), types.end(), product.type) == types.end()) {
      types.push_back(product.type);
    }
  }
  for (const DeviceWeightType type : types) {
    absl::StrAppend(&key, "; tiles of ", kernels::DeviceWeightTypeName(type));
    for (const int32_t i : AdmissibleTiles(type, device)) {
      const kernels::DeviceGemmTile tile = device.ops().gemm_tile(type, i);
      absl::StrAppend(&key, " ", i, ":", tile.rows, "x", tile.n, "x", tile.k, "x", tile.stages, "x",
                      tile.cluster);
    }
  }
  return key;
}

GemmTiles ChooseGemmTiles(const DeviceWeights& weights, const GemmTilesOptions& options,
                          kernels::Device& device, const kernels::ParallelFor& parallel) {
  if (options.choice == "by-shape") return {};
  const std::vector<GemmProduct> products = GemmProductsOf(weights);
  const std::string key = GemmTilesKey(products, device);
  const std::string path = PathOf(options, key);
  if (options.choice != "search" && !path.empty()) {
    absl::StatusOr<GemmTiles> kept = ReadTiles(path, key, products, device, parallel);
    if (kept.ok()) {
      Log(LogLevel::kInfo, "read the tiles of matrix products", {{"path", path}});
      return *std::move(kept);
    }
    if (!absl::IsNotFound(kept.status())) {
      Log(LogLevel::kWarning, "cannot use the stored tiles of matrix products, searching again",
          {{"why", kept.status().ToString()}});
    }
  }
  const absl::Time begin = RealClock().Now();
  absl::StatusOr<GemmTiles> found = SearchGemmTiles(products, device, options.timer);
  if (!found.ok()) {
    Log(LogLevel::kWarning, "cannot search for tiles of matrix products, kernels choose by shape",
        {{"why", found.status().ToString()}});
    return {};
  }
  Log(LogLevel::kInfo, "searched tiles of matrix products",
      {{"products", products.size()},
       {"time", absl::FormatDuration(RealClock().Now() - begin)},
       {"path", path}});
  KeepTiles(path, key, *found, parallel);
  return *std::move(found);
}

}  // namespace tandem::engine
