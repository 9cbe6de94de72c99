// Goal: the roof of memory and caches is measured with loads of whole vectors where the processor
// has them; loads of eight bytes have a quarter of the caches' rate.
#include <gtest/gtest.h>

#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

constexpr absl::string_view kFoldVectors =
    "_ZN6tandem6engine12_GLOBAL__N_111FoldVectorsEPKSt4bytem";

TEST(MachineRoofs, ReadsWholeVectors) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the vectors are x86's";
#endif
  if (RunShell("objdump --version").exit_code != 0) GTEST_SKIP() << "objdump is not installed";
  // Which object holds it depends on how many sources are compiled at a time.
  const std::string objects = absl::StrCat("$(grep -rl --include='*.o' ", kFoldVectors, " ",
                                           TANDEM_BINARY_DIR, "/cli/CMakeFiles/tandem_cli.dir)");
  const ProgramRun run = RunShell(
      absl::StrCat("objdump -d --no-show-raw-insn --disassemble=", kFoldVectors, " ", objects));
  const size_t begin = run.output.find(absl::StrCat("<", kFoldVectors, ">:"));
  ASSERT_NE(begin, std::string::npos);
  const std::string function = run.output.substr(begin, run.output.find("\n\n", begin) - begin);
  int loads = 0;
  for (size_t at = 0; (at = function.find("),%ymm", at)) != std::string::npos; ++at) ++loads;
  EXPECT_GE(loads, 1) << function;
}

}  // namespace
}  // namespace tandem::testing
