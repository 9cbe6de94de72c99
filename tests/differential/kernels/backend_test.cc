// Goal: dispatch finds what the processor has, names are parsed, and no code of a wide class can be
// reached from baseline code: its objects define no symbol that the linker may share.
#include <cstdio>

#include "kernel_fixture.h"

namespace tandem::kernels {
namespace {

TEST(Backend, TablesAreComplete) {
  for (IsaClass isa : {IsaClass::kRef, IsaClass::kAvx2, IsaClass::kAvx512, IsaClass::kAvx512Bf16,
                       IsaClass::kAmx, IsaClass::kAmxEmulated}) {
    const Backend* backend = FindBackend(isa);
    EXPECT_EQ(backend == nullptr, !WhyMissing(isa).empty());
    if (backend == nullptr) continue;
    EXPECT_EQ(backend->isa, isa);
    EXPECT_TRUE(backend->packed_bytes && backend->pack_rows && backend->gemm && backend->rms_norm);
    EXPECT_TRUE(backend->rope && backend->gated_activation && backend->add && backend->scale);
    EXPECT_TRUE(backend->kv_write && backend->kv_read && backend->attention && backend->sample);
  }
  EXPECT_NE(FindBackend(IsaClass::kRef), nullptr);
  EXPECT_FALSE(BestPortableBackend().dot_products);
  EXPECT_TRUE(BestBackend().dot_products || &BestBackend() == &BestPortableBackend());
}

TEST(Backend, ParsesClassNames) {
  IsaClass isa = IsaClass::kRef;
  EXPECT_TRUE(ParseIsaClass("avx512", &isa));
  EXPECT_EQ(isa, IsaClass::kAvx512);
  EXPECT_TRUE(ParseIsaClass("ref", &isa));
  EXPECT_EQ(isa, IsaClass::kRef);
  EXPECT_TRUE(ParseIsaClass("avx512bf16", &isa));
  EXPECT_EQ(isa, IsaClass::kAvx512Bf16);
  EXPECT_TRUE(ParseIsaClass("amx", &isa));
  EXPECT_EQ(isa, IsaClass::kAmx);
  EXPECT_FALSE(ParseIsaClass("sse", &isa));
}

// A node that chose another class at each start could not rejoin its fleet.
TEST(Backend, TheBestClassIsTheSameAtEveryStart) {
#if defined(TANDEM_SANITIZED)
  GTEST_SKIP() << "the class is chosen by measured rates, which are the sanitizer's";
#endif
  const Backend* first = &BestBackend();
  for (int start = 0; start < 50; ++start) EXPECT_EQ(&BestBackend(), first) << "start " << start;
}

TEST(Backend, WideClassesShareNoCodeWithBaseline) {
  int symbols = 0;
  for (const std::string isa : {"avx2", "avx512", "avx512bf16", "amx", "amx_emulated"}) {
    const std::string command = "nm -C " TANDEM_BINARY_DIR "/kernels/CMakeFiles/tandem_kernels_" +
                                isa + ".dir/cpu/*.o 2>/dev/null";
    FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    char line[4096];
    while (std::fgets(line, sizeof(line), pipe) != nullptr) {
      ++symbols;
      // "address W name": a weak function, of which the linker keeps any one definition ("V", weak
      // data, does no harm): only what is named after the class, which compilers that expand less
      // in line leave, is not another one's.
      char kind = 0;
      if (std::sscanf(line, "%*x %c", &kind) != 1 || kind != 'W') continue;
      EXPECT_NE(std::string(line).find("kernels::" + isa + "::"), std::string::npos)
          << isa << ": " << line;
    }
    pclose(pipe);
  }
  if (symbols == 0) GTEST_SKIP() << "nm is not installed or the class was not built";
}

}  // namespace
}  // namespace tandem::kernels
