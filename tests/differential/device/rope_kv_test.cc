// Goal: QK-norm with RoPE and the cache write on the device equal their formulas in double, within
// roundings, for a cache of each type; codes of one byte are the nearest ones and widen exactly;
// padding rows write no cache; nothing outside a row's place is touched.
#include "device_fixture.h"
#include "kernels/api/device_rope_kv.h"
#include "kernels/cuda/simt/byte_codes.h"
#include "kv_codes.h"

namespace tandem::kernels {
namespace {

// One call's inputs and what it wrote.
struct RopeKvCase {
  int32_t head_dim = 0;
  bool norm = false;
  KvType type = KvType::kBf16;
  std::vector<float> qkv, q_norm, k_norm, cos, sin;
  std::vector<Bf16Bits> q;
  std::vector<uint8_t> cache;

  KvShape Kv() const { return {kKvHeads, head_dim, kBlockTokens, type}; }

  static constexpr int32_t kHeads = 3, kKvHeads = 2, kRows = 4, kBlockTokens = 16;
  static constexpr int32_t kAllHeads = kHeads + 2 * kKvHeads;
  static constexpr int32_t kPositions[kRows] = {8, 0, 5, 3};
  static constexpr int64_t kSlots[kRows] = {kBlockTokens * 2 + 7, 3, -1, kBlockTokens + 15};
};

class DeviceRopeKvTest : public DeviceTest {
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
    args.layer.shape = c->Kv();
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(args.layer.shape));
    const size_t region_size = 3 * KvBlockBytes(args.layer.shape);
    const size_t q_size = static_cast<size_t>(c->kRows * c->kHeads * head_dim);
    const DeviceBuffer region = Poisoned(region_size), q = Poisoned(q_size * 2);
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
    c->cache = Download<uint8_t>(region, region_size);
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

  // The slab that the head of K or V of a row was to be written to; nullptr: nowhere.
  static const uint8_t* Slab(const RopeKvCase& c, int32_t row, int32_t head) {
    const int64_t slot = c.kSlots[row];
    if (slot < 0) return nullptr;
    const int32_t value = head >= c.kHeads + c.kKvHeads ? 1 : 0;
    const int32_t kv_head = (head - c.kHeads) % c.kKvHeads;
    const int64_t slab = (slot / c.kBlockTokens * c.kKvHeads + kv_head) * 2 + value;
    return c.cache.data() + static_cast<size_t>(slab) * KvSlabBytes(c.Kv());
  }

  static void ExpectBf16(const Bf16Bits* actual, const std::vector<double>& expected,
                         const std::string& what) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(FromBf16(actual[i]), expected[i],
                  kBf16Unit * 1.01 * std::abs(expected[i]) + 16 * kUnit)
          << what << " element " << i;
    }
  }

  // Codes within half a step of the formula, beside the scale that the largest magnitude gives.
  static void ExpectCodes(const RopeKvCase& c, const uint8_t* slab, int32_t token,
                          const std::vector<double>& expected, const std::string& what) {
    double most = 0;
    for (double x : expected) most = std::max(most, std::abs(x));
    float scale = 0;
    std::memcpy(&scale, slab + ScaleOffset(c.Kv(), token), sizeof(scale));
    const double slack = 32 * kUnit * std::max(most, 1.0);
    ASSERT_NEAR(scale * double{LargestKvCode(c.type)}, most, slack) << what;
    for (size_t i = 0; i < expected.size(); ++i) {
      const uint8_t code = slab[CodesOffset(c.Kv(), token) + i];
      const double nearest = CodeValue(c.type, NearestCode(c.type, expected[i] / scale)) * scale;
      ASSERT_LE(std::abs(CodeValue(c.type, code) * scale - expected[i]),
                std::abs(nearest - expected[i]) + 2 * slack)
          << what << " element " << i << " code " << int{code};
    }
  }

  void ExpectRight(const RopeKvCase& c) {
    size_t untouched = 0;
    for (uint8_t byte : c.cache) untouched += byte == 0xff ? 1 : 0;
    const size_t token_bytes = KvSlabBytes(c.Kv()) / c.kBlockTokens;
    const size_t written = 3 * 2 * c.kKvHeads * token_bytes;
    EXPECT_GE(untouched, c.cache.size() - written) << "three rows' K, V";
    for (int32_t row = 0; row < c.kRows; ++row) {
      for (int32_t head = 0; head < c.kAllHeads; ++head) {
        const std::vector<double> expected = Expected(c, row, head);
        const std::string what = "row " + std::to_string(row) + " head " + std::to_string(head) +
                                 " of " + std::to_string(c.head_dim);
        if (head < c.kHeads) {
          ExpectBf16(c.q.data() + (row * c.kHeads + head) * c.head_dim, expected, what);
          continue;
        }
        const uint8_t* slab = Slab(c, row, head);
        if (slab == nullptr) continue;
        const int32_t token = static_cast<int32_t>(c.kSlots[row] % c.kBlockTokens);
        if (HasKvScales(c.type)) {
          ExpectCodes(c, slab, token, expected, what);
        } else {
          ExpectBf16(reinterpret_cast<const Bf16Bits*>(slab) + token * c.head_dim, expected, what);
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceRopeKvTest, kDeviceKinds, DeviceName);

TEST_P(DeviceRopeKvTest, NormsRotatesAndWritesTheCache) {
  for (const KvType type : {KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
    for (int32_t head_dim : {16, 32, 64, 128, 256}) {
      RopeKvCase c;
      c.head_dim = head_dim;
      c.norm = head_dim != 64;
      c.type = type;
      RunCase(&c);
      ExpectRight(c);
    }
  }
}

TEST(KvCodes, EveryCodeWidensExactly) {
  const auto check = [](KvType type, const auto& widen) {
    for (uint32_t code = 0; code < 256; ++code) {
      if (type == KvType::kFp8 && (code & 0x7f) == 0x7f) continue;  // NaN, never written
      const uint32_t next = (code + 1) % 256;
      uint32_t out[2];
      widen(code | next << 8 | code << 16 | next << 24, out);
      EXPECT_EQ(out[0] & 0xffff, out[0] >> 16) << code;
      EXPECT_EQ(double{FromBf16(static_cast<Bf16Bits>(out[0]))},
                CodeValue(type, static_cast<uint8_t>(code)));
      if (type == KvType::kFp8 && (next & 0x7f) == 0x7f) continue;
      EXPECT_EQ(double{FromBf16(static_cast<Bf16Bits>(out[1] >> 16))},
                CodeValue(type, static_cast<uint8_t>(next)));
    }
  };
  check(KvType::kInt8, emulated::WidenCodes<KvType::kInt8>);
  check(KvType::kFp8, emulated::WidenCodes<KvType::kFp8>);
}

TEST(KvCodes, EveryValueTakesTheNearestCode) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 generator(seed);
  const auto check = [&](float x) {
    const uint8_t fp8 = emulated::ToFp8Code(x), int8 = emulated::ToInt8Code(x);
    EXPECT_EQ(int{fp8}, int{NearestCode(KvType::kFp8, x)}) << x;
    EXPECT_EQ(int{int8}, int{NearestCode(KvType::kInt8, x)}) << x;
  };
  // Codes, the middles between them, and what lies just beside both; then anything.
  for (int code = 0; code < 0x7e; ++code) {
    const double low = CodeValue(KvType::kFp8, static_cast<uint8_t>(code));
    const double high = CodeValue(KvType::kFp8, static_cast<uint8_t>(code + 1));
    for (double x : {low, (low + high) / 2, high}) {
      const float value = static_cast<float>(x);
      for (float near : {value, std::nextafter(value, 1000.0f), std::nextafter(value, 0.0f)}) {
        check(near);
        check(-near);
      }
    }
  }
  for (int i = 0; i < 2000; ++i) {
    check(static_cast<float>(std::ldexp(std::uniform_real_distribution<>(-1, 1)(generator),
                                        static_cast<int>(generator() % 24) - 14)));
  }
}

}  // namespace
}  // namespace tandem::kernels
