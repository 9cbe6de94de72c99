// Goal: embedding, RMSNorm, gated activations and block copies on the device equal their formulas
// in double, within roundings; nothing outside a row's place is touched.
#include "device_fixture.h"
#include "kernels/api/device_block_copies.h"
#include "kernels/api/device_embed.h"
#include "kernels/api/device_gated.h"
#include "kernels/api/device_rms_norm.h"

namespace tandem::kernels {
namespace {

using DeviceRowOpsTest = DeviceTest;
INSTANTIATE_TEST_SUITE_P(All, DeviceRowOpsTest, kDeviceKinds, DeviceName);

TEST_P(DeviceRowOpsTest, EmbedScalesTheTokensRow) {
  // Rows that threads read by fours, and others.
  for (const int32_t size : {4 * Uniform(1, 1500), 8 * Uniform(1, 80) + 3}) {
    const std::vector<Bf16Bits> table = NormalBf16(static_cast<size_t>(5 * size));
    const DeviceBuffer tokens = Upload(std::vector<int32_t>{3, 0, 4, 3}), dtable = Upload(table);
    const DeviceBuffer y = Poisoned(static_cast<size_t>(4 * size) * sizeof(float));
    ops().embed({tokens.as<int32_t>(), dtable.as<Bf16Bits>(), 1.5f, 4, size, y.as<float>()},
                stream());
    const std::vector<float> actual = Download<float>(y, static_cast<size_t>(4 * size));
    const int32_t expected_tokens[] = {3, 0, 4, 3};
    for (int32_t row = 0; row < 4; ++row) {
      for (int32_t i = 0; i < size; ++i) {
        ASSERT_EQ(actual[static_cast<size_t>(row * size + i)],
                  FromBf16(table[static_cast<size_t>(expected_tokens[row] * size + i)]) * 1.5f);
      }
    }
  }
}

TEST_P(DeviceRowOpsTest, RmsNormGathersRoundsAndAdds) {
  // Rows that a thread holds in registers, of each form, and rows that it does not.
  for (int32_t size : {1, 64, 257, 1000, 2048, 3000, 8192, 9000}) {
    const std::vector<float> x = Normal(static_cast<size_t>(6 * size), 3.0f);
    const std::vector<float> weight = Normal(static_cast<size_t>(size));
    const std::vector<int32_t> gather = {5, 2};
    const DeviceBuffer dx = Upload(x), dweight = Upload(weight), dgather = Upload(gather);
    const DeviceBuffer y = Poisoned(static_cast<size_t>(2 * size) * 2);
    const DeviceBuffer residual = Upload(std::vector<float>(static_cast<size_t>(2 * size), 2.0f));
    DeviceRmsNormArgs args;
    args.x = dx.as<float>();
    args.weight = dweight.as<float>();
    args.gather = dgather.as<int32_t>();
    args.rows = 2;
    args.size = size;
    args.y = y.as<Bf16Bits>();
    args.residual = residual.as<float>();
    ops().rms_norm(args, stream());
    const auto rounded = Download<Bf16Bits>(y, static_cast<size_t>(2 * size));
    const auto added = Download<float>(residual, static_cast<size_t>(2 * size));
    for (size_t row = 0; row < 2; ++row) {
      const auto expected =
          Norm(x.data() + gather[row] * size, weight.data(), static_cast<size_t>(size), args.eps);
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t at = row * expected.size() + i;
        ASSERT_NEAR(FromBf16(rounded[at]), expected[i], kBf16Unit * 1.01 * std::abs(expected[i]));
        ASSERT_NEAR(added[at], 2 + expected[i], 8 * kUnit * (2 + std::abs(expected[i])));
      }
    }
  }
}

TEST_P(DeviceRowOpsTest, GatedActivations) {
  const int32_t rows = 3, size = 1100;
  const std::vector<float> gate_up = Normal(static_cast<size_t>(rows * 2 * size), 3.0f);
  const DeviceBuffer in = Upload(gate_up);
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    const DeviceBuffer y = Poisoned(static_cast<size_t>(rows * size) * 2);
    ops().gated({activation, in.as<float>(), rows, size, y.as<Bf16Bits>()}, stream());
    const auto actual = Download<Bf16Bits>(y, static_cast<size_t>(rows * size));
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < size; ++i) {
        const double g = gate_up[static_cast<size_t>(row * 2 * size + i)];
        const double up = gate_up[static_cast<size_t>(row * 2 * size + size + i)];
        const double act =
            activation == GateActivation::kSilu
                ? g / (1 + std::exp(-g))
                : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        // GELU of a negative number cancels: its error is relative to g.
        ASSERT_NEAR(FromBf16(actual[static_cast<size_t>(row * size + i)]), act * up,
                    kBf16Unit * 1.01 * std::abs(act * up) + 8 * kUnit * std::abs(g * up));
      }
    }
  }
}

// Cells come together in the order they are named, go apart likewise, and what lies beside them
// stays; cells larger than a thread block's share are whole.
TEST_P(DeviceRowOpsTest, MoveCellsGathersAndScatters) {
  for (const size_t cell : {size_t{16}, size_t{4096 + 48}, size_t{40000}}) {
    const size_t words = cell / 4, count = 5;
    std::vector<int32_t> region(8 * words), payload(count * words);
    for (size_t i = 0; i < region.size(); ++i) region[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < payload.size(); ++i) payload[i] = -1 - static_cast<int32_t>(i);
    const DeviceBuffer base = Upload(region), gathered = Upload(payload);
    const DeviceBuffer scattered = Upload(payload);
    const size_t places[count] = {6, 0, 7, 3, 2};
    DeviceMoveCellsArgs args;
    args.cell_bytes = static_cast<int64_t>(cell);
    args.count = static_cast<int32_t>(count);
    for (size_t i = 0; i < count; ++i) args.cells[i] = base.data() + places[i] * cell;
    args.payload = gathered.data();
    ops().move_cells(args, stream());
    const auto together = Download<int32_t>(gathered, payload.size());
    args.payload = scattered.data();
    args.gather = false;
    ops().move_cells(args, stream());
    const auto apart = Download<int32_t>(base, region.size());
    for (size_t i = 0; i < count; ++i) {
      for (size_t w = 0; w < words; ++w) {
        ASSERT_EQ(together[i * words + w], region[places[i] * words + w]) << cell << " cell " << i;
        ASSERT_EQ(apart[places[i] * words + w], payload[i * words + w]) << cell << " cell " << i;
      }
    }
    for (const size_t untouched : {size_t{1}, size_t{4}, size_t{5}}) {
      for (size_t w = untouched * words; w < (untouched + 1) * words; ++w) {
        ASSERT_EQ(apart[w], region[w]) << cell;
      }
    }
  }
}

TEST_P(DeviceRowOpsTest, CopyBlocksCopiesWholeBlocksOnly) {
  const size_t block = 96;  // elements of 4 bytes
  std::vector<int32_t> region(7 * block);
  for (size_t i = 0; i < region.size(); ++i) region[i] = static_cast<int32_t>(i);
  const DeviceBuffer base = Upload(region);
  const DeviceBuffer pairs = Upload(std::vector<BlockPair>{{0, 3}, {6, 1}});
  ops().copy_blocks({base.data(), static_cast<int64_t>(block * 4), pairs.as<BlockPair>(), 2},
                    stream());
  const auto actual = Download<int32_t>(base, region.size());
  const size_t from[] = {0, 6, 2, 0, 4, 5, 6};
  for (size_t i = 0; i < region.size(); ++i) {
    ASSERT_EQ(actual[i], static_cast<int32_t>(from[i / block] * block + i % block));
  }
}

}  // namespace
}  // namespace tandem::kernels
