// Goal: embedding, RMSNorm, QK-norm with RoPE and cache write, gated activations and block copies
// on the device equal their formulas in double, within roundings; padding rows write no cache;
// nothing outside a row's place is touched.
#include "device_fixture.h"

namespace tandem::kernels {
namespace {

class DeviceRowOpsTest : public DeviceTest {
 protected:
  // x / sqrt(mean(x²) + eps) · weight in double.
  static std::vector<double> Norm(const float* x, const float* weight, size_t size, double eps) {
    double squares = 0;
    for (size_t i = 0; i < size; ++i) squares += double{x[i]} * x[i];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + eps);
    std::vector<double> out;
    for (size_t i = 0; i < size; ++i) out.push_back(x[i] * factor * weight[i]);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceRowOpsTest, kDeviceKinds, DeviceName);

TEST_P(DeviceRowOpsTest, EmbedScalesTheTokensRow) {
  const int32_t size = Uniform(1, 700);
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

TEST_P(DeviceRowOpsTest, RmsNormGathersRoundsAndAdds) {
  for (int32_t size : {1, 64, 257, 1000}) {
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

// One call's inputs and what it wrote.
struct RopeKvCase {
  int32_t head_dim = 0;
  bool norm = false;
  std::vector<float> qkv, q_norm, k_norm, cos, sin;
  std::vector<Bf16Bits> q, cache;

  static constexpr int32_t kHeads = 3, kKvHeads = 2, kRows = 4, kBlockTokens = 16;
  static constexpr int32_t kAllHeads = kHeads + 2 * kKvHeads;
  static constexpr int32_t kPositions[kRows] = {8, 0, 5, 3};
  static constexpr int64_t kSlots[kRows] = {kBlockTokens * 2 + 7, 3, -1, kBlockTokens + 15};
};

class DeviceRopeKvTest : public DeviceRowOpsTest {
 protected:
  void RunCase(RopeKvCase* c) {
    const int32_t head_dim = c->head_dim;
    c->qkv = Normal(static_cast<size_t>(c->kRows * c->kAllHeads * head_dim));
    c->q_norm = Normal(static_cast<size_t>(head_dim));
    c->k_norm = Normal(static_cast<size_t>(head_dim));
    for (int32_t i = 0; i < 9 * head_dim / 2; ++i) {
      c->cos.push_back(std::cos(0.37f * static_cast<float>(i)));
      c->sin.push_back(std::sin(0.37f * static_cast<float>(i)));
    }
    const DeviceBuffer qkv = Upload(c->qkv), q_norm = Upload(c->q_norm), k_norm = Upload(c->k_norm),
                       cos = Upload(c->cos), sin = Upload(c->sin);
    const DeviceBuffer positions =
        Upload(std::vector<int32_t>(std::begin(c->kPositions), std::end(c->kPositions)));
    const DeviceBuffer slots =
        Upload(std::vector<int64_t>(std::begin(c->kSlots), std::end(c->kSlots)));
    DeviceRopeKvArgs args;
    args.layer.shape = {c->kKvHeads, head_dim, c->kBlockTokens, KvType::kBf16};
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(args.layer.shape));
    const size_t region_size = 3 * KvBlockBytes(args.layer.shape) / 2;
    const size_t q_size = static_cast<size_t>(c->kRows * c->kHeads * head_dim);
    const DeviceBuffer region = Poisoned(region_size * 2), q = Poisoned(q_size * 2);
    args.layer.base = region.data();
    args.qkv = qkv.as<float>();
    args.rows = c->kRows;
    args.num_heads = c->kHeads;
    args.q_norm = c->norm ? q_norm.as<float>() : nullptr;
    args.k_norm = c->norm ? k_norm.as<float>() : nullptr;
    args.positions = positions.as<int32_t>();
    args.cos = cos.as<float>();
    args.sin = sin.as<float>();
    args.slots = slots.as<int64_t>();
    args.q = q.as<Bf16Bits>();
    ops().rope_kv(args, stream());
    c->q = Download<Bf16Bits>(q, q_size);
    c->cache = Download<Bf16Bits>(region, region_size);
  }

  // A head of q|k|v of a row, normed and rotated in double.
  std::vector<double> Expected(const RopeKvCase& c, int32_t row, int32_t head) {
    const float* x = c.qkv.data() + (row * c.kAllHeads + head) * c.head_dim;
    std::vector<double> y(x, x + c.head_dim);
    if (head >= c.kHeads + c.kKvHeads) return y;
    if (c.norm) {
      const std::vector<float>& weight = head < c.kHeads ? c.q_norm : c.k_norm;
      y = Norm(x, weight.data(), y.size(), DeviceRopeKvArgs().eps);
    }
    const size_t half = y.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      const size_t angle = static_cast<size_t>(c.kPositions[row]) * half + i;
      const double first = y[i], second = y[i + half];
      y[i] = first * c.cos[angle] - second * c.sin[angle];
      y[i + half] = second * c.cos[angle] + first * c.sin[angle];
    }
    return y;
  }

  // Where that head was to be written; nullptr: nowhere.
  static const Bf16Bits* Written(const RopeKvCase& c, int32_t row, int32_t head) {
    if (head < c.kHeads) return c.q.data() + (row * c.kHeads + head) * c.head_dim;
    const int64_t slot = c.kSlots[row];
    if (slot < 0) return nullptr;
    const int32_t value = head >= c.kHeads + c.kKvHeads ? 1 : 0;
    const int32_t kv_head = (head - c.kHeads) % c.kKvHeads;
    const int64_t slab = (slot / c.kBlockTokens * c.kKvHeads + kv_head) * 2 + value;
    return c.cache.data() + (slab * c.kBlockTokens + slot % c.kBlockTokens) * c.head_dim;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceRopeKvTest, kDeviceKinds, DeviceName);

TEST_P(DeviceRopeKvTest, NormsRotatesAndWritesTheCache) {
  for (int32_t head_dim : {16, 32, 64, 128, 256}) {
    RopeKvCase c;
    c.head_dim = head_dim;
    c.norm = head_dim != 64;
    RunCase(&c);
    size_t written = 0;
    for (Bf16Bits bits : c.cache) written += bits != 0xffff ? 1 : 0;
    EXPECT_EQ(written, static_cast<size_t>(3 * 2 * c.kKvHeads * head_dim)) << "three rows' K, V";
    for (int32_t row = 0; row < c.kRows; ++row) {
      for (int32_t head = 0; head < c.kAllHeads; ++head) {
        const std::vector<double> expected = Expected(c, row, head);
        const Bf16Bits* actual = Written(c, row, head);
        for (size_t i = 0; actual != nullptr && i < expected.size(); ++i) {
          ASSERT_NEAR(FromBf16(actual[i]), expected[i],
                      kBf16Unit * 1.01 * std::abs(expected[i]) + 16 * kUnit)
              << "row " << row << " head " << head << " element " << i << " of " << head_dim;
        }
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
