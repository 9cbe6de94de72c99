// Goal: the search takes, for each product and bucket of rows, the tile that the timer says is
// fastest, among those the device has room for; it times whole products of the model's shapes with
// the device's own events; and a call gets the tile of its own shape and bucket only.
#include <gmock/gmock.h>

#include <iostream>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "common/engine/device/gemm_tiles.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "tests/testing/status_matchers.h"

namespace tandem::engine {
namespace {

using kernels::Device;
using kernels::DeviceGemmArgs;
using kernels::DeviceWeightType;
using kernels::emulated::EmulatedChip;
using kernels::emulated::NewEmulatedDevice;
using tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kN = 48, kK = 64;

// A model of `layers` layers whose four products have three shapes, and an output matrix.
DeviceWeights NewWeights(Device& device, int layers, DeviceWeightType type) {
  const auto matrix = [&](int32_t n, int32_t k) {
    DeviceMatrix matrix{n, k, type, {}, {}, {}};
    const size_t bytes =
        static_cast<size_t>(n) * static_cast<size_t>(kernels::PaddedColumns(k)) * 2;
    for (kernels::DeviceBuffer* buffer : {&matrix.values, &matrix.scales}) {
      *buffer = device.Allocate(kernels::DeviceBuffer::Kind::kDevice, bytes).value();
      std::memset(buffer->data(), 0, bytes);
    }
    return matrix;
  };
  DeviceWeights weights;
  for (int i = 0; i < layers; ++i) {
    DeviceLayerWeights& layer = weights.layers.emplace_back();
    layer.qkv = matrix(kN, kK);
    layer.o = matrix(kN, kK);
    layer.gate_up = matrix(kN, kK);
    layer.down = matrix(kN, 2 * kK);
  }
  weights.output = matrix(3 * kN, kK);
  return weights;
}

using Call = std::tuple<int32_t, int32_t, bool, bool, int32_t>;  // n, k, gated, adds, rows
Call CallOf(const DeviceGemmArgs& args) {
  return {args.n, args.k, args.gated != nullptr, args.add_to_y, args.rows};
}

// Times drawn once for each call and tile.
class DrawnTimes {
 public:
  explicit DrawnTimes(uint64_t seed) : random_(seed) {}

  GemmTimer timer() {
    return [this](absl::Span<const DeviceGemmArgs> calls) -> absl::StatusOr<double> {
      const auto [time, drawn] = times_[CallOf(calls[0])].try_emplace(calls[0].tile, 0);
      EXPECT_TRUE(drawn) << "a tile was timed twice";
      // Few values, so that some are equal.
      time->second = static_cast<double>(random_() % 6);
      for (const DeviceGemmArgs& call : calls) {
        EXPECT_EQ(CallOf(call), CallOf(calls[0]));
        EXPECT_EQ(call.tile, calls[0].tile);
      }
      return time->second;
    };
  }
  // The first of the fastest, of those timed for a call.
  int32_t Fastest(const Call& call) const {
    int32_t best = -1;
    double least = 0;
    for (const auto& [tile, time] : times_.at(call)) {
      if (best >= 0 && time >= least) continue;
      best = tile;
      least = time;
    }
    return best;
  }
  const std::map<Call, std::map<int32_t, double>>& times() const { return times_; }

 private:
  std::mt19937_64 random_;
  std::map<Call, std::map<int32_t, double>> times_;
};

class GemmTilesSearch
    : public ::testing::TestWithParam<std::tuple<EmulatedChip, DeviceWeightType>> {
 protected:
  GemmTilesSearch()
      : device_(NewEmulatedDevice(1, std::get<0>(GetParam()))),
        weights_(NewWeights(*device_, 3, std::get<1>(GetParam()))),
        products_(GemmProductsOf(weights_)) {}

  std::unique_ptr<Device> device_;
  DeviceWeights weights_;
  std::vector<GemmProduct> products_;
};
INSTANTIATE_TEST_SUITE_P(
    All, GemmTilesSearch,
    ::testing::Combine(::testing::Values(EmulatedChip::kAmpere, EmulatedChip::kHopper),
                       ::testing::Values(DeviceWeightType::kBf16, DeviceWeightType::kInt8)));
INSTANTIATE_TEST_SUITE_P(Fp8, GemmTilesSearch,
                         ::testing::Values(std::tuple(EmulatedChip::kHopper,
                                                      DeviceWeightType::kFp8Rows)));

TEST_P(GemmTilesSearch, TakesTheFastestForEveryShapeAndBucket) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  DrawnTimes drawn(seed);
  ASSERT_OK_AND_ASSIGN(const GemmTiles tiles, SearchGemmTiles(products_, *device_, drawn.timer()));
  // qkv, o and the gate share a shape. The one adds, and the other gates: each is of its own kind.
  ASSERT_EQ(products_.size(), 5u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(products_[i].weights.size(), 3u);
  EXPECT_TRUE(products_[1].adds && products_[3].adds) << "o and down, without a norm behind them";
  size_t calls = 0;
  for (const GemmProduct& product : products_) {
    DeviceGemmArgs args;
    args.type = product.type;
    args.n = product.n;
    args.k = product.k;
    args.add_to_y = product.adds;
    kernels::Bf16Bits gated = 0;
    if (product.gated) args.gated = &gated;
    int32_t first = 1;
    for (const int32_t bucket : kGemmRowBuckets) {
      if (bucket > product.rows_max) break;
      ++calls;
      const int32_t fastest =
          drawn.Fastest({product.n, product.k, product.gated, product.adds, bucket});
      for (const int32_t rows : {first, (first + bucket) / 2, bucket}) {
        args.rows = rows;
        EXPECT_EQ(tiles.TileFor(args), fastest) << rows << " rows of " << product.n;
      }
      first = bucket + 1;
    }
    args.rows = product.rows_max + 1;
    EXPECT_EQ(tiles.TileFor(args), -1) << "beyond what was timed";
    args.rows = 1;
    args.n += 8;
    EXPECT_EQ(tiles.TileFor(args), -1) << "another shape";
    args.n = product.n;
    args.type = DeviceWeightType::kFp8;
    EXPECT_EQ(tiles.TileFor(args), -1) << "another type";
  }
  EXPECT_EQ(drawn.times().size(), calls) << "each call is timed once";
  EXPECT_EQ(products_.back().rows_max, kOutputRowsMax);
}

TEST_P(GemmTilesSearch, TimesEveryTileThatTheDeviceHasRoomFor) {
  DrawnTimes drawn(1);
  ASSERT_OK(SearchGemmTiles(products_, *device_, drawn.timer()).status());
  const DeviceWeightType type = std::get<1>(GetParam());
  std::set<int32_t> fitting;
  for (int32_t i = 0; device_->ops().gemm_tile(type, i).shared_bytes > 0; ++i) {
    if (static_cast<int64_t>(device_->ops().gemm_tile(type, i).shared_bytes) <=
        device_->properties().shared_bytes_per_block_max) {
      fitting.insert(i);
    }
  }
  const bool hopper = std::get<0>(GetParam()) == EmulatedChip::kHopper;
  EXPECT_EQ(fitting.size(), !hopper || type == DeviceWeightType::kInt8 ? 3u
                            : type == DeviceWeightType::kBf16          ? 9u
                                                                       : 7u);
  for (const auto& [call, times] : drawn.times()) {
    std::set<int32_t> timed;
    for (const auto& [tile, time] : times) timed.insert(tile);
    EXPECT_EQ(timed, fitting);
  }
}

// By the blocks it takes: a search that timed one tile under many names would find nothing.
TEST_P(GemmTilesSearch, TheTileThatACallNamesIsTheOneThatRuns) {
  constexpr int32_t kRows = 70;
  ASSERT_OK_AND_ASSIGN(const auto stream, device_->NewStream());
  const auto scratch = [&](size_t bytes) {
    auto buffer = device_->Allocate(kernels::DeviceBuffer::Kind::kDevice, bytes).value();
    std::memset(buffer.data(), 0, bytes);
    return buffer;
  };
  const auto x = scratch(kRows * kK * 4), x_rounded = scratch(kRows * kernels::PaddedColumns(kK)),
             x_scales = scratch(kernels::ScaleStride(kRows) * 16), y = scratch(kRows * 3 * kN * 4);
  DeviceGemmArgs args;
  args.type = std::get<1>(GetParam());
  args.x = x.as<kernels::Bf16Bits>();
  args.w = weights_.output.values.as<kernels::Bf16Bits>();
  args.packed = weights_.output.values.data();
  args.scales = weights_.output.scales.data();
  args.x_rounded = x_rounded.data();
  args.x_scales = x_scales.as<float>();
  args.rows = kRows;
  args.n = 3 * kN;
  args.k = kK;
  args.y = y.as<float>();
  args.multiprocessors = 1000;  // as many blocks as there are tiles
  std::set<int64_t> counts;
  for (args.tile = 0;; ++args.tile) {
    const kernels::DeviceGemmTile tile = device_->ops().gemm_tile(args.type, args.tile);
    if (tile.shared_bytes == 0) break;
    const int64_t before = kernels::emulated::CallsOf(*device_).blocks;
    device_->ops().gemm(args, *stream);
    const int64_t columns = tile.n * tile.cluster;  // of y, for a cluster's blocks
    const int64_t expected =
        (kRows + tile.rows - 1) / tile.rows * ((args.n + columns - 1) / columns) * tile.cluster;
    EXPECT_EQ(kernels::emulated::CallsOf(*device_).blocks - before, expected) << args.tile;
    counts.insert(expected);
  }
  EXPECT_GE(counts.size(), 3u);
}

// A device whose shared memory holds none but the smallest tiles.
class SmallDevice final : public Device {
 public:
  explicit SmallDevice(Device& device) : device_(device), properties_(device.properties()) {
    properties_.shared_bytes_per_block_max = 64 << 10;
  }
  const kernels::DeviceProperties& properties() const override { return properties_; }
  const kernels::DeviceOps& ops() const override { return device_.ops(); }
  absl::StatusOr<int64_t> FreeBytes() override { return device_.FreeBytes(); }
  absl::StatusOr<kernels::DeviceBuffer> Allocate(kernels::DeviceBuffer::Kind kind,
                                                 size_t bytes) override {
    return device_.Allocate(kind, bytes);
  }
  absl::Status Pin(void* host, size_t bytes) override { return device_.Pin(host, bytes); }
  void Unpin(void* host) override { device_.Unpin(host); }
  absl::StatusOr<std::unique_ptr<kernels::DeviceStream>> NewStream(
      kernels::StreamPriority priority) override {
    return device_.NewStream(priority);
  }
  absl::StatusOr<std::unique_ptr<kernels::DeviceEvent>> NewEvent() override {
    return device_.NewEvent();
  }

 private:
  void Free(kernels::DeviceBuffer::Kind, void*) override {}

  Device& device_;
  kernels::DeviceProperties properties_;
};

TEST(GemmTiles, NeverNameATileThatDoesNotFit) {
  const auto device = NewEmulatedDevice(1);
  const DeviceWeights weights = NewWeights(*device, 1, DeviceWeightType::kBf16);
  SmallDevice small(*device);
  DrawnTimes drawn(1);
  const auto products = GemmProductsOf(weights);
  ASSERT_OK(SearchGemmTiles(products, small, drawn.timer()).status());
  for (const auto& [call, times] : drawn.times()) {
    for (const auto& [tile, time] : times) {
      EXPECT_LE(device->ops().gemm_tile(DeviceWeightType::kBf16, tile).shared_bytes, 64u << 10);
    }
    EXPECT_LT(times.size(), 3u);
  }
  EXPECT_NE(GemmTilesKey(products, small), GemmTilesKey(products, *device));
}

// A model whose projections end in norms stores what others add.
TEST(GemmTiles, ProjectionsBeforeANormDoNotAdd) {
  const auto device = NewEmulatedDevice(1);
  DeviceWeights weights = NewWeights(*device, 1, DeviceWeightType::kBf16);
  for (auto* norm : {&weights.layers[0].post_attention_norm, &weights.layers[0].post_ffn_norm}) {
    *norm = device->Allocate(kernels::DeviceBuffer::Kind::kDevice, kN * sizeof(float)).value();
  }
  const auto products = GemmProductsOf(weights);
  EXPECT_EQ(products.size(), 4u) << "qkv and o are one product";
  for (const GemmProduct& product : products) EXPECT_FALSE(product.adds);
}

TEST(GemmTiles, AreTimedInAGraphWithTheDevicesEvents) {
  const auto device = NewEmulatedDevice(1);
  const DeviceWeights weights = NewWeights(*device, 2, DeviceWeightType::kBf16);
  std::vector<GemmProduct> products = GemmProductsOf(weights);
  for (GemmProduct& product : products) product.rows_max = 8;  // what emulated products can do
  EXPECT_THAT(SearchGemmTiles(products, *device, nullptr).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no clock")));
  // A clock that only graphs move, by ten milliseconds each.
  kernels::emulated::SetClock(*device, [&] {
    return 10.0f * static_cast<float>(kernels::emulated::CallsOf(*device).graphs);
  });
  ASSERT_OK_AND_ASSIGN(const auto stream, device->NewStream());
  const auto filled = [&](size_t count, auto value) {
    auto buffer =
        device->Allocate(kernels::DeviceBuffer::Kind::kDevice, count * sizeof(value)).value();
    std::fill_n(buffer.template as<decltype(value)>(), count, value);
    return buffer;
  };
  constexpr kernels::Bf16Bits kOne = 0x3f80;
  const auto x = filled(8 * kK, kOne), w = filled(kN * kK, kOne), y = filled(8 * kN, 0.0f);
  std::vector<DeviceGemmArgs> calls(5);
  for (DeviceGemmArgs& call : calls) {
    call.x = x.as<kernels::Bf16Bits>();
    call.w = w.as<kernels::Bf16Bits>();
    call.rows = 8;
    call.n = kN;
    call.k = kK;
    call.add_to_y = true;
    call.y = y.as<float>();
  }
  ASSERT_OK_AND_ASSIGN(const double ms, TimeGemmsInGraph(*device, *stream)(calls));
  EXPECT_EQ(ms, 2.0) << "10 ms for five calls";
  // Each product adds kK. One runs alone, then four runs of the graph.
  for (int i = 0; i < 8 * kN; ++i) ASSERT_EQ(y.as<float>()[i], kK * (1 + 4 * 5)) << i;
  // Every tile takes the same time then, and the first of them is taken.
  ASSERT_OK_AND_ASSIGN(const GemmTiles tiles, SearchGemmTiles(products, *device, nullptr));
  for (const GemmTiles::Entry& entry : tiles.entries) {
    EXPECT_EQ(entry.tiles, std::vector<int8_t>{0});
  }
}

TEST(GemmTiles, KeysSayWhatTimesDependOn) {
  const auto ampere = NewEmulatedDevice(1), hopper = NewEmulatedDevice(1, EmulatedChip::kHopper);
  const DeviceWeights weights = NewWeights(*ampere, 2, DeviceWeightType::kBf16);
  const auto products = GemmProductsOf(weights);
  const std::string key = GemmTilesKey(products, *ampere);
  EXPECT_THAT(key, AllOf(HasSubstr("emulated sm80"), HasSubstr("thread block emulator"),
                         HasSubstr("emulated-mma16816"), HasSubstr("48x64 gated to 2048"),
                         HasSubstr("144x64 to 256"), HasSubstr("48x64 added to 2048"),
                         HasSubstr("0:16x32x128x4")));
  EXPECT_NE(GemmTilesKey(products, *hopper), key);
  const DeviceWeights other = NewWeights(*ampere, 2, DeviceWeightType::kInt8);
  EXPECT_NE(GemmTilesKey(GemmProductsOf(other), *ampere), key);
}

}  // namespace
}  // namespace tandem::engine
