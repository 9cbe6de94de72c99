// Goal: the AMX class is chosen only where it works. Whatever CPUID, the system or a wrong product
// says against it becomes a reason in words; the self-check finds a wrong element, a wrong bit of
// an integer product and wrongly packed weights; and real tiles agree with emulated ones.
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "kernel_fixture.h"
#include "kernels/dispatch/amx_detection.h"
#include "kernels/dispatch/amx_self_check.h"

namespace tandem::kernels {
namespace {

using ::testing::HasSubstr;

AmxFacts SapphireRapids() {
  AmxFacts facts;
  facts.avx512 = facts.tile = facts.bf16 = facts.int8 = facts.xgetbv = true;
  facts.kept = 0x602e7;
  facts.tile_bytes = 1024;
  facts.tile_row_bytes = 64;
  facts.tiles = 8;
  facts.tile_rows = 16;
  facts.product_rows = 16;
  facts.product_row_bytes = 64;
  return facts;
}

TEST(AmxClass, EveryMissingFactIsNamed) {
  EXPECT_EQ(JudgeAmxFacts(SapphireRapids()), "");
  EXPECT_EQ(JudgeAmxFacts({}), "the processor has no AMX-TILE");
  const auto without = [](const auto& take) {
    AmxFacts facts = SapphireRapids();
    take(&facts);
    return JudgeAmxFacts(facts);
  };
  EXPECT_EQ(without([](AmxFacts* f) { f->bf16 = false; }), "the processor has no AMX-BF16");
  EXPECT_EQ(without([](AmxFacts* f) { f->int8 = false; }), "the processor has no AMX-INT8");
  EXPECT_THAT(without([](AmxFacts* f) { f->avx512 = false; }), HasSubstr("AVX-512"));
  EXPECT_THAT(without([](AmxFacts* f) { f->xgetbv = false; }), HasSubstr("OSXSAVE"));
  // Either of the two parts of the state alone will not do.
  EXPECT_THAT(without([](AmxFacts* f) { f->kept = 0x202e7; }), HasSubstr("XCR0 is 202e7"));
  EXPECT_THAT(without([](AmxFacts* f) { f->kept = 0x402e7; }), HasSubstr("XCR0 is 402e7"));
  EXPECT_THAT(without([](AmxFacts* f) { f->tiles = 4; }), HasSubstr("4 tiles of 16 rows"));
  EXPECT_THAT(without([](AmxFacts* f) { f->product_rows = 8; }), HasSubstr("products of 8 by 64"));
}

TEST(AmxClass, IsJudgedByThisProcessorsFacts) {
  const AmxFacts facts = FindAmxFacts();
  std::ifstream file("/proc/cpuinfo");
  std::stringstream text;
  text << file.rdbuf();
  // What the system lists, CPUID has.
  EXPECT_TRUE(facts.tile || text.str().find(" amx_tile") == std::string::npos);
  EXPECT_TRUE(facts.bf16 || text.str().find(" amx_bf16") == std::string::npos);
  EXPECT_TRUE(facts.int8 || text.str().find(" amx_int8") == std::string::npos);
  const std::string why = WhyMissing(IsaClass::kAmx);
  std::printf("AMX: %s\n", why.empty() ? "available" : why.c_str());
  EXPECT_EQ(why.empty(), FindBackend(IsaClass::kAmx) != nullptr);
  const std::string judged = JudgeAmxFacts(facts);
  EXPECT_TRUE(judged.empty() || why == judged) << why << ", judged " << judged;
}

// A backend whose products are wrong in one element of each of some calls.
const Backend* real = nullptr;
int calls_until_wrong = 0;
float wrong_by = 0;

void WrongGemm(const GemmArgs& args, const ParallelFor& parallel) {
  real->gemm(args, parallel);
  if (calls_until_wrong-- == 0)
    args.y[(args.rows - 1) * args.y_stride + args.w.shape.n - 1] += wrong_by;
}
void WrongPackRows(const PackRowsArgs& args) {
  real->pack_rows(args);
  static_cast<char*>(args.packed)[real->packed_bytes(args.shape) - 1] ^= 1;
}

TEST(AmxClass, SelfCheckFindsWhatIsWrong) {
  real = FindBackend(IsaClass::kAmxEmulated);
  if (real == nullptr) GTEST_SKIP() << WhyMissing(IsaClass::kAmxEmulated);
  EXPECT_EQ(CompareProducts(*real, *real), "");
  Backend wrong = *real;
  wrong.gemm = WrongGemm;
  wrong_by = 1e-2f;  // of sums of some units
  constexpr int kProducts = 10;
  for (int call = 0; call < kProducts; ++call) {
    calls_until_wrong = call;
    EXPECT_THAT(CompareProducts(wrong, *real), HasSubstr(call < 5 ? "bf16" : "int8")) << call;
  }
  wrong_by = 1e-6f;  // rounding may differ, integers may not
  calls_until_wrong = 0;
  EXPECT_EQ(CompareProducts(wrong, *real), "");
  calls_until_wrong = 9;
  EXPECT_THAT(CompareProducts(wrong, *real), HasSubstr("int8 product of 70 rows"));
  wrong_by = NAN;
  calls_until_wrong = 2;
  EXPECT_THAT(CompareProducts(wrong, *real), HasSubstr("is nan"));
  wrong = *real;
  wrong.pack_rows = WrongPackRows;
  EXPECT_THAT(CompareProducts(wrong, *real), HasSubstr("packed incorrectly"));
  // Another class packs otherwise.
  EXPECT_NE(CompareProducts(*FindBackend(IsaClass::kAvx2), *real), "");
}

TEST(AmxClass, RealTilesAgreeWithEmulatedOnes) {
  const Backend* tiles = FindBackend(IsaClass::kAmx);
  if (tiles == nullptr) GTEST_SKIP() << WhyMissing(IsaClass::kAmx);
  EXPECT_EQ(CompareProducts(*tiles, *FindBackend(IsaClass::kAmxEmulated)), "");
}

class AmxClassTest : public KernelTest, public ::testing::WithParamInterface<IsaClass> {
 protected:
  // Multiplies a random matrix of random shape, and compares each element with the definition in
  // docs/NUMERICS.md: 32 of k at a time, their even and their odd elements summed apart, and both
  // together added to what came before. `scale` multiplies the elements of x.
  void CompareOneProduct(const Backend& backend, float scale) {
    const int64_t rows = Uniform(1, 70);
    const MatrixShape shape = {Uniform(1, 90), Uniform(1, 200), WeightType::kBf16};
    const Floats x = Normal(static_cast<size_t>(rows * shape.k), scale);
    const Floats w = Normal(static_cast<size_t>(shape.n * shape.k));
    Floats packed(backend.packed_bytes(shape) / 4), y(static_cast<size_t>(rows * shape.n));
    Floats scratch(GemmScratchBytes(rows, shape.k) / 4);
    backend.pack_rows({shape, 0, shape.n, w.data(), packed.data()});
    GemmArgs args;
    args.x = x.data();
    args.x_stride = shape.k;
    args.rows = rows;
    args.w = {shape, packed.data()};
    args.y = y.data();
    args.y_stride = shape.n;
    args.scratch = scratch.data();
    Threads two(2);
    backend.gemm(args, two.parallel());
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < shape.n; ++n) {
        float expected = 0;
        for (int64_t step = 0; step < shape.k; step += 32) {
          float halves[2] = {};
          for (int64_t k = step; k < std::min(step + 32, shape.k); ++k) {
            const float xk = FlushedToZero(RoundedToBf16(x[static_cast<size_t>(m * shape.k + k)]));
            const float wk = FlushedToZero(RoundedToBf16(w[static_cast<size_t>(n * shape.k + k)]));
            halves[k % 2] = FlushedToZero(std::fmaf(xk, wk, halves[k % 2]));
          }
          expected = FlushedToZero(expected + FlushedToZero(halves[0] + halves[1]));
        }
        ASSERT_EQ(y[static_cast<size_t>(m * shape.n + n)], expected)
            << rows << " rows, n " << shape.n << ", k " << shape.k << ", at " << m << "," << n;
      }
    }
  }

 private:
  static float FlushedToZero(float value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? 0.0f : value;
  }
};

TEST_P(AmxClassTest, Bf16ProductsAreTheirDefinitionToTheBit) {
  const Backend* backend = FindBackend(GetParam());
  if (backend == nullptr) GTEST_SKIP() << WhyMissing(GetParam());
  for (int trial = 0; trial < 20; ++trial) CompareOneProduct(*backend, 1);
  // Products and sums around 2⁻¹²⁶, where some are subnormal.
  for (int trial = 0; trial < 20; ++trial) CompareOneProduct(*backend, 0x1p-126f);
}

INSTANTIATE_TEST_SUITE_P(Tiles, AmxClassTest,
                         ::testing::Values(IsaClass::kAmx, IsaClass::kAmxEmulated),
                         [](const auto& info) {
                           return info.param == IsaClass::kAmx ? "Real" : "Emulated";
                         });

// Instructions of tiles in an archive or object: how many, by object and mnemonic.
std::vector<std::string> TileInstructions(const std::string& path) {
  const std::string command = "objdump -d --no-show-raw-insn " + path + " 2>/dev/null";
  FILE* pipe = popen(command.c_str(), "r");
  std::vector<std::string> found;
  std::string object;
  char line[4096];
  while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) {
    const std::string text = line;
    if (text.find("file format") != std::string::npos) object = text.substr(0, text.find(':'));
    for (const char* name : {"tdpbf16ps", "tdpbssd", "ldtilecfg", "tileloadd", "tilestored",
                             "tilezero", "tilerelease", "%tmm"}) {
      if (text.find(name) != std::string::npos) found.push_back(object + " " + name);
    }
  }
  if (pipe != nullptr) pclose(pipe);
  return found;
}

// The emulation stands in for the same sources: that the real ones became tile instructions, in
// their own objects and nowhere else, is read from the code.
TEST(AmxClass, TileInstructionsAreWhereTheyBelong) {
  const std::string kernels = std::string(TANDEM_BINARY_DIR) + "/kernels/";
  const std::string objects = kernels + "CMakeFiles/tandem_kernels_amx.dir/cpu/";
  const std::vector<std::string> bf16 = TileInstructions(objects + "gemm_tile.cc.o");
  if (bf16.empty()) GTEST_SKIP() << "objdump is not installed or the class was not built";
  const std::vector<std::string> int8 = TileInstructions(objects + "gemm_tile_int8.cc.o");
  const auto has = [](const std::vector<std::string>& found, const std::string& name) {
    return std::any_of(found.begin(), found.end(), [&](const std::string& entry) {
      return entry.substr(entry.rfind(' ') + 1) == name;
    });
  };
  for (const char* name : {"ldtilecfg", "tileloadd", "tilestored", "tilezero", "tilerelease"}) {
    EXPECT_TRUE(has(bf16, name)) << name;
    EXPECT_TRUE(has(int8, name)) << name;
  }
  EXPECT_TRUE(has(bf16, "tdpbf16ps"));
  EXPECT_FALSE(has(bf16, "tdpbssd"));
  EXPECT_TRUE(has(int8, "tdpbssd"));
  EXPECT_FALSE(has(int8, "tdpbf16ps"));
  const std::vector<std::string> attention = TileInstructions(objects + "partition_pass_tile.cc.o");
  EXPECT_TRUE(has(attention, "tdpbf16ps"));
  EXPECT_FALSE(has(attention, "tdpbssd"));
  // The archive names an object by its source alone: all that have tiles are these, and the classes
  // besides amx that compile the same sources have none in theirs. Both operators of attention hold
  // tiles while they run groups, and so release them.
  const std::set<std::string> with_tiles = {"gemm_tile.cc.o",      "gemm_tile_int8.cc.o",
                                            "tile_peak_rate.cc.o", "partition_pass_tile.cc.o",
                                            "attention.cc.o",      "attention_partials.cc.o"};
  for (const std::string& entry : TileInstructions(kernels + "libtandem_kernels.a")) {
    const std::string object = entry.substr(0, entry.rfind(' '));
    EXPECT_TRUE(with_tiles.contains(object)) << entry;
  }
  for (const char* isa : {"avx2", "avx512", "avx512bf16", "amx_emulated"}) {
    const std::string others = kernels + "CMakeFiles/tandem_kernels_" + isa + ".dir/cpu/";
    EXPECT_THAT(TileInstructions(others + "*.o"), ::testing::IsEmpty()) << isa;
  }
}

}  // namespace
}  // namespace tandem::kernels
