// Goal: the emulated tile registers do what Intel's manual says of AMX: bf16 products in its order,
// without subnormals, int8 products exactly, rows and bytes as configured; and end the process
// where the processor would raise a fault or memory is touched that the caller did not name.
#define TANDEM_ISA tile_test
#define TANDEM_EMULATED_TILES
#include "kernel_fixture.h"
#include "kernels/cpu/tile_registers.h"

namespace tandem::kernels::tile_test {
namespace {

// Rows of 64 bytes.
struct Rows {
  alignas(64) char bytes[kTileRows][kTileRowBytes] = {};

  TileMemory<const char> view() const { return {bytes[0], kTileRowBytes}; }
  TileMemory<char> place() { return {bytes[0], kTileRowBytes}; }
  MemoryRange range() const { return RangeFrom(0); }
  MemoryRange RangeFrom(int64_t row) const {
    const char* begin = reinterpret_cast<const char*>(bytes);
    return {begin + row * kTileRowBytes, begin + sizeof(bytes)};
  }
  template <typename T>
  T& At(int64_t row, int64_t column) {
    return reinterpret_cast<T*>(bytes[row])[column];
  }
};

struct Shape {
  int64_t m, k_dwords, n;
};

// C in tile 0, A in tile 1, B in tile 2.
TileConfig ConfigOf(const Shape& shape) {
  TileConfig config;
  const int64_t rows[] = {shape.m, shape.m, shape.k_dwords};
  const int64_t dwords[] = {shape.n, shape.k_dwords, shape.n};
  for (int t = 0; t < 3; ++t) {
    config.rows[t] = static_cast<uint8_t>(rows[t]);
    config.row_bytes[t] = static_cast<uint16_t>(dwords[t] * 4);
  }
  return config;
}

template <typename Product>
Rows Run(const Shape& shape, const Rows& a, const Rows& b, const Rows& c, const Product& product) {
  TileRegisters tiles;
  tiles.Configure(ConfigOf(shape));
  tiles.Load<0>(c.view(), c.range());
  tiles.Load<1>(a.view(), a.range());
  tiles.Load<2>(b.view(), b.range());
  product(tiles);
  Rows out;
  std::memset(out.bytes, 0x5a, sizeof(out.bytes));
  tiles.Store<0>(out.place(), out.range());
  return out;
}
Rows RunBf16(const Shape& shape, const Rows& a, const Rows& b, const Rows& c) {
  return Run(shape, a, b, c, [](TileRegisters& tiles) { tiles.DotBf16<0, 1, 2>(); });
}
Rows RunInt8(const Shape& shape, const Rows& a, const Rows& b, const Rows& c) {
  return Run(shape, a, b, c, [](TileRegisters& tiles) { tiles.DotInt8<0, 1, 2>(); });
}

// Upper half of an fp32 that bf16 holds exactly.
uint16_t Bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  EXPECT_EQ(bits & 0xffffu, 0u) << x << " is no bf16";
  return static_cast<uint16_t>(bits >> 16);
}
float Widened(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float out = 0;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

class EmulatedTiles : public KernelTest {
 protected:
  Shape RandomShape() { return {Uniform(1, 16), Uniform(1, 16), Uniform(1, 16)}; }
};

TEST_F(EmulatedTiles, Bf16ProductsAreTheManualsElementByElement) {
  for (int trial = 0; trial < 50; ++trial) {
    const Shape shape = RandomShape();
    Rows a, b, c;
    for (Rows* rows : {&a, &b}) {
      const Floats values = Normal(kTileRows * 32, trial % 2 == 0 ? 1.0f : 1e-19f);
      for (size_t i = 0; i < values.size(); ++i) {
        rows->At<uint16_t>(static_cast<int64_t>(i) / 32, static_cast<int64_t>(i) % 32) =
            Bf16(RoundedToBf16(values[i]));
      }
    }
    const Floats sums = Normal(kTileRows * 16);
    std::memcpy(c.bytes, sums.data(), sizeof(c.bytes));
    Rows out = RunBf16(shape, a, b, c);
    for (int64_t m = 0; m < shape.m; ++m) {
      for (int64_t n = 0; n < shape.n; ++n) {
        float halves[2] = {};
        double exact = c.At<float>(m, n), magnitude = std::fabs(exact);
        for (int64_t half = 0; half < 2; ++half) {
          for (int64_t k = 0; k < shape.k_dwords; ++k) {
            const float x = Widened(a.At<uint16_t>(m, 2 * k + half));
            const float w = Widened(b.At<uint16_t>(k, 2 * n + half));
            halves[half] = std::fmaf(x, w, halves[half]);
            if (std::fabs(halves[half]) < 0x1p-126f) halves[half] *= 0.0f;
            exact += double{x} * w;
            magnitude += std::fabs(double{x} * w);
          }
        }
        const float expected = c.At<float>(m, n) + (halves[0] + halves[1]);
        ASSERT_EQ(out.At<float>(m, n), expected) << m << "," << n;
        ASSERT_NEAR(out.At<float>(m, n), exact, 34 * kUnit * magnitude + 64 * 0x1p-126);
      }
    }
    // Nothing is written beyond the shape.
    for (int64_t m = 0; m < kTileRows; ++m) {
      for (int64_t i = m < shape.m ? shape.n * 4 : 0; i < kTileRowBytes; ++i) {
        ASSERT_EQ(out.bytes[m][i], 0x5a) << m << "," << i;
      }
    }
  }
}

TEST_F(EmulatedTiles, EvenAndOddElementsAreSummedApart) {
  const Shape shape = {1, 2, 1};
  Rows a, b, c;
  // One after the other, 1 would swallow the first 2^-24.
  const float even[] = {1, -1}, odd[] = {0x1p-24f, 0x1p-24f};
  for (int64_t k = 0; k < 2; ++k) {
    a.At<uint16_t>(0, 2 * k) = Bf16(even[k]);
    a.At<uint16_t>(0, 2 * k + 1) = Bf16(odd[k]);
    b.At<uint16_t>(k, 0) = b.At<uint16_t>(k, 1) = Bf16(1);
  }
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0x1p-23f);
  // The sum of the products meets C once.
  c.At<float>(0, 0) = 1;
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 1 + 0x1p-23f);
}

TEST_F(EmulatedTiles, SubnormalsAreZero) {
  const Shape shape = {1, 1, 1};
  Rows a, b, c;
  a.At<uint16_t>(0, 0) = Bf16(0x1p-127f);  // an input
  b.At<uint16_t>(0, 0) = Bf16(0x1p+100f);
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0);
  a.At<uint16_t>(0, 0) = Bf16(0x1p-126f);
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0x1p-26f);
  b.At<uint16_t>(0, 0) = Bf16(0.5f);  // a product
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0);
  c.At<float>(0, 0) = -0x1p-128f;  // a sum that comes in
  b.At<uint16_t>(0, 0) = Bf16(1);
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0x1p-126f);
  c.At<float>(0, 0) = -0x1.8p-126f;  // one that goes out
  EXPECT_EQ(RunBf16(shape, a, b, c).At<float>(0, 0), 0);
}

TEST_F(EmulatedTiles, Int8ProductsAreExactAndSigned) {
  for (int trial = 0; trial < 50; ++trial) {
    const Shape shape = RandomShape();
    Rows a, b, c;
    for (int64_t row = 0; row < kTileRows; ++row) {
      for (int64_t i = 0; i < kTileRowBytes; ++i) {
        a.bytes[row][i] = static_cast<char>(trial == 0 ? -128 : Uniform(-128, 127));
        b.bytes[row][i] = static_cast<char>(trial == 0 ? -128 : Uniform(-128, 127));
      }
      for (int64_t n = 0; n < 16; ++n) {
        c.At<int32_t>(row, n) = static_cast<int32_t>(Uniform(-1000000, 1000000));
      }
    }
    Rows out = RunInt8(shape, a, b, c);
    for (int64_t m = 0; m < shape.m; ++m) {
      for (int64_t n = 0; n < shape.n; ++n) {
        int64_t expected = c.At<int32_t>(m, n);
        for (int64_t k = 0; k < 4 * shape.k_dwords; ++k) {
          expected += int64_t{a.At<int8_t>(m, k)} * b.At<int8_t>(k / 4, 4 * n + k % 4);
        }
        ASSERT_EQ(out.At<int32_t>(m, n), expected) << m << "," << n;
      }
    }
  }
}

TEST_F(EmulatedTiles, ConfiguringZeroesAndStridesAreKept) {
  TileRegisters tiles;
  const Shape shape = {3, 2, 2};
  Rows ones, out;
  std::memset(ones.bytes, 1, sizeof(ones.bytes));
  tiles.Configure(ConfigOf(shape));
  tiles.Load<1>({ones.bytes[0], 8}, {ones.bytes[0], ones.bytes[0] + 24});  // rows side by side
  tiles.Configure(ConfigOf(shape));
  tiles.Store<1>(out.place(), out.range());
  EXPECT_EQ(out.At<int32_t>(2, 1), 0);
}

using EmulatedTilesDeathTest = EmulatedTiles;

TEST_F(EmulatedTilesDeathTest, FaultsOfConfigurations) {
  const auto configure = [](const auto& change) {
    TileConfig config = ConfigOf({4, 4, 4});
    change(&config);
    TileRegisters tiles;
    tiles.Configure(config);
  };
  EXPECT_DEATH(configure([](TileConfig* c) { c->palette = 2; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->start_row = 1; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->reserved[3] = 1; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->rows[9] = 1; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->rows[1] = 17; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->row_bytes[1] = 65; }), "precondition broken");
  EXPECT_DEATH(configure([](TileConfig* c) { c->row_bytes[1] = 0; }), "precondition broken");
}

TEST_F(EmulatedTilesDeathTest, FaultsOfShapes) {
  const auto product = [&](const auto& change) {
    TileConfig config = ConfigOf({4, 4, 4});
    change(&config);
    TileRegisters tiles;
    tiles.Configure(config);
    tiles.DotBf16<0, 1, 2>();
  };
  EXPECT_DEATH(product([](TileConfig* c) { c->rows[1] = 3; }), "c.rows == a.rows");
  EXPECT_DEATH(product([](TileConfig* c) { c->rows[2] = 5; }), "b.rows");
  EXPECT_DEATH(product([](TileConfig* c) { c->row_bytes[2] = 12; }), "b.row_bytes");
  EXPECT_DEATH(product([](TileConfig* c) { c->row_bytes[1] = 14; }), "a.row_bytes % 4");
  EXPECT_DEATH(product([](TileConfig* c) { c->rows[2] = c->row_bytes[2] = 0; }), "b.rows > 0");
}

TEST_F(EmulatedTilesDeathTest, FaultsOfMemory) {
  Rows rows;
  TileRegisters tiles;
  EXPECT_DEATH(tiles.Load<1>(rows.view(), rows.range()), "rows > 0");
  tiles.Configure(ConfigOf({4, 4, 4}));
  const MemoryRange short_range = {rows.bytes[0], rows.bytes[3] + 15};
  EXPECT_DEATH(tiles.Load<1>(rows.view(), short_range), "readable.end");
  EXPECT_DEATH(tiles.Load<1>(rows.view(), rows.RangeFrom(1)), "readable.begin");
  EXPECT_DEATH(tiles.Store<1>(rows.place(), short_range), "writable.end");
  EXPECT_DEATH(tiles.Zero<5>(), "rows > 0");
}

}  // namespace
}  // namespace tandem::kernels::tile_test
