// Goal: what is written into the cache is what is read: every token, K and V, rounded to the
// cache's type exactly as the reference rounds it, and nothing else of the region changes. The
// reference gives NaN, which int8 has not, a code of its own.
#include "paged_batch.h"

namespace tandem::kernels {
namespace {

class KvCacheTest : public ClassTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, KvCacheTest, kCpuClasses, ClassName);

std::vector<float> ReadBack(const Backend& backend, const KvLayer& layer,
                            const std::vector<int32_t>& table, int32_t position, int32_t head,
                            bool value) {
  std::vector<float> out(static_cast<size_t>(layer.shape.head_dim));
  backend.kv_read({layer, table[static_cast<size_t>(position / layer.shape.block_tokens)], head,
                   value, position % layer.shape.block_tokens, out.data()});
  return out;
}

TEST_P(KvCacheTest, WritesEveryTokenRoundedAndNothingElse) {
  for (KvType type : {KvType::kF32, KvType::kBf16, KvType::kInt8}) {
    const KvShape shape = {2, 48, 32, type};
    const int32_t length = 75, size = 96;
    Floats k = Normal(length * size), v = Normal(length * size);
    k[3] = INFINITY;
    k[4] = NAN;
    k[5] = 0x1.01p0f;                               // halfway between two bf16: to even, down
    k[6] = 0x1.03p0f;                               // halfway: to even, up
    k[7] = 1e-42f;                                  // subnormal
    k[8] = 3.4e38f;                                 // rounds to infinity in bf16
    if (type == KvType::kInt8) k[3] = k[4] = 1.0f;  // a head of K must be finite there
    std::mt19937_64 same(seed_), order(seed_);
    PagedCache mine(shape, {length}, &same), reference(shape, {length}, &order);
    Threads three(3);
    for (PagedCache* cache : {&mine, &reference}) {
      const SequenceRows rows = {cache->table(0).data(), 0, length, 0};
      KvWriteArgs args = {k.data(), size, v.data(), size, cache->layer(), &rows, 1};
      (cache == &mine ? *backend_ : ref_).kv_write(args, three.parallel());
    }
    for (int32_t position = 0; position < 96; ++position) {
      for (int32_t head = 0; head < 2; ++head) {
        for (bool value : {false, true}) {
          const auto read = ReadBack(*backend_, mine.layer(), mine.table(0), position, head, value);
          const auto expected =
              ReadBack(ref_, reference.layer(), reference.table(0), position, head, value);
          ExpectSameBits(read.data(), expected.data(), read.size(),
                         "position " + std::to_string(position));
          EXPECT_EQ(std::isnan(read[10]), position >= length);
        }
      }
    }
  }
}

TEST(RefKvCache, NaNBecomesTheLeastInt8Code) {
  const Backend& ref = *FindBackend(IsaClass::kRef);
  const KvShape shape = {1, 16, 16, KvType::kInt8};
  std::mt19937_64 order(1);
  PagedCache cache(shape, {1}, &order);
  Floats values(16);
  for (size_t d = 0; d < 16; ++d) values[d] = 0;
  values[0] = 127;
  values[1] = NAN;
  const SequenceRows rows = {cache.table(0).data(), 0, 1, 0};
  ref.kv_write({values.data(), 16, values.data(), 16, cache.layer(), &rows, 1}, {});
  const auto read = ReadBack(ref, cache.layer(), cache.table(0), 0, 0, true);
  EXPECT_EQ(read[0], 127);
  EXPECT_EQ(read[1], -127);
  EXPECT_EQ(read[2], 0);
}

}  // namespace
}  // namespace tandem::kernels
