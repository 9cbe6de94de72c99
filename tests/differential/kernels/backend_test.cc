// Goal: dispatch finds what the processor has, names are parsed, and no code of a wide class can be
// reached from baseline code: its objects define no symbol that the linker may share. What a rate
// is measured of is in the loop that is timed.
#include <algorithm>
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

// How often an instruction named `product` and one named `other` occur in each loop of a function
// that holds no other loop.
struct LoopCount {
  int products = 0, others = 0;
};
std::vector<LoopCount> InnermostLoops(const std::string& object, const std::string& function,
                                      const std::string& product, const std::string& other) {
  struct Line {
    uint64_t address = 0, target = 0;  // target: of a jump; 0: none
    std::string text;
  };
  const std::string command = "objdump -d --no-show-raw-insn --disassemble=" + function + " " +
                              TANDEM_BINARY_DIR + "/kernels/CMakeFiles/" + object + " 2>/dev/null";
  std::vector<Line> lines;
  std::vector<LoopCount> loops;
  FILE* pipe = popen(command.c_str(), "r");
  char text[4096];
  while (pipe != nullptr && std::fgets(text, sizeof(text), pipe) != nullptr) {
    Line line = {.text = text};
    if (std::sscanf(text, " %lx:\tj%*s %lx", &line.address, &line.target) < 1) continue;
    lines.push_back(line);
  }
  if (pipe != nullptr) pclose(pipe);
  for (size_t end = 0; end < lines.size(); ++end) {
    if (lines[end].target == 0 || lines[end].target >= lines[end].address) continue;
    LoopCount count;
    size_t i = end;
    while (i > 0 && lines[i - 1].address >= lines[end].target) {
      const Line& line = lines[--i];
      count.products += line.text.find(product) != std::string::npos ? 1 : 0;
      count.others += line.text.find(other) != std::string::npos ? 1 : 0;
      if (line.target != 0 && line.target < line.address) break;  // a loop in this one
    }
    if (lines[i].address == lines[end].target) loops.push_back(count);
  }
  return loops;
}

// A compiler that sees through the operands multiplies once, and the rate is that of the sums.
TEST(Backend, ProductsAreInTheLoopThatTimesThem) {
#if defined(TANDEM_SANITIZED)
  GTEST_SKIP() << "the loop may call functions there";
#endif
  for (const std::string isa : {"avx2", "avx512", "avx512bf16"}) {
    const bool dots = isa == "avx512bf16";
    const std::string name = "_ZN6tandem7kernels" + std::to_string(isa.size()) + isa;
    const std::string object = "tandem_kernels_" + isa + ".dir/cpu/peak_rate.cc.o";
    const std::vector<LoopCount> loops =
        InnermostLoops(object, name + "12Int8PeakRateEv", dots ? "vpdpbusd" : "vpmaddwd", "vpaddd");
    if (loops.empty()) GTEST_SKIP() << "objdump is not installed or the class was not built";
    const bool found = std::any_of(loops.begin(), loops.end(), [&](const LoopCount& loop) {
      return loop.products >= 6 && (dots || loop.products == loop.others);
    });
    EXPECT_TRUE(found) << isa;
  }
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
