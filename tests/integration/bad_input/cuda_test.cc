// Goal: asking for a GPU that is not there ends with exit code 1 and the reason; options that a GPU
// cannot serve are refused; `tandem version` says what there is.
#include <gmock/gmock.h>

#include "kernels/api/device.h"
#include "tests/testing/program_run.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

const std::string kTinyModel = "--model=" TANDEM_SOURCE_DIR "/tests/golden/tiny/llama";

TEST(Cuda, VersionSaysWhatThereIs) {
  const ProgramRun run = RunProgram({"tandem", "version"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.output, HasSubstr("CUDA: " + kernels::DescribeCuda()));
}

TEST(Cuda, NodesWithoutAGpuSayWhy) {
  if (kernels::CountCudaDevices() > 0) GTEST_SKIP() << "this host has a GPU";
  for (const char* program : {"tandem-decode-node", "tandem-prefill-node"}) {
    const ProgramRun run = RunProgram({program, "--device=cuda", kTinyModel});
    EXPECT_EQ(run.exit_code, 1) << run.output;
    EXPECT_THAT(run.output, HasSubstr("CUDA"));
  }
}

TEST(Cuda, BenchesOfADeviceSayWhyTheyCannotRun) {
  const ProgramRun kernels_run =
      RunProgram({"tandem", "bench", "kernels", "--device=cuda", kTinyModel});
  EXPECT_EQ(kernels_run.exit_code, 2) << kernels_run.output;
  EXPECT_THAT(kernels_run.output, HasSubstr("only `bench engine` measures devices"));
  if (kernels::CountCudaDevices() > 0) GTEST_SKIP() << "this host has a GPU";
  const ProgramRun run = RunProgram({"tandem", "bench", "engine", "--device=cuda", kTinyModel});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("CUDA"));
}

TEST(Cuda, OptionsAGpuCannotServeAreRefused) {
  const ProgramRun run =
      RunProgram({"tandem-decode-node", "--device=cuda", "--kv-type=f32", kTinyModel});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("kv_type is \"f32\" (--kv-type)"));
}

TEST(Cuda, OptionsACpuCannotServeAreRefused) {
  const ProgramRun run = RunProgram({"tandem-decode-node", "--kv-type=fp8", kTinyModel});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_THAT(run.output, HasSubstr("kv_type is \"fp8\" (--kv-type)"));
}

}  // namespace
}  // namespace tandem::testing
