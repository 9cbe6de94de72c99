// Goal: `tandem bench kernels` measures products with weights as the engine keeps them and says of
// what type they are, and the picture of `bench engine` has the roof of the products' type.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/testing/program_run.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

const std::string kTinyModel =
    absl::StrCat("--model=", TANDEM_SOURCE_DIR, "/tests/golden/tiny/llama");

nlohmann::json RunKernels(const std::vector<std::string>& flags) {
  std::vector<std::string> words = {"tandem",      "bench",    "kernels", kTinyModel,
                                    "--threads=1", "--time=0", "--json"};
  words.insert(words.end(), flags.begin(), flags.end());
  const ProgramRun run = RunProgram(words);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  const size_t begin = run.output.find("{\"numerics");
  if (begin == std::string::npos) return {};
  return nlohmann::json::parse(run.output.substr(begin), nullptr, /*allow_exceptions=*/false);
}

// The types of the products that `operation` names.
std::set<std::string> TypesOf(const nlohmann::json& report, const std::string& operation) {
  std::set<std::string> types;
  for (const auto& result : report["results"]) {
    if (result["operation"] == operation) types.insert(result["weights"].get<std::string>());
  }
  return types;
}

TEST(BenchKernels, FourBitsKeepTheOutputInInt8) {
  const nlohmann::json report = RunKernels({"--weights=int4"});
  ASSERT_TRUE(report.is_object());
  for (const char* operation : {"gemm qkv", "gemm o", "gemm gate_up", "gemm down"}) {
    EXPECT_EQ(TypesOf(report, operation), std::set<std::string>{"int4"}) << operation;
  }
  EXPECT_EQ(TypesOf(report, "gemm output"), std::set<std::string>{"int8"});
  EXPECT_EQ(TypesOf(report, "rms_norm"), std::set<std::string>{""});
  for (const auto& result : report["results"]) {
    if (result["operation"] != "gemm output") continue;
    int64_t rows = 0, n = 0, k = 0;
    std::istringstream shape(result["shape"].get<std::string>());
    std::string x;
    shape >> rows >> x >> n >> x >> k;
    EXPECT_GE(result["bytes"].get<double>(), static_cast<double>(n * k)) << result;
  }
}

TEST(BenchKernels, Bf16StaysBf16InPortableClasses) {
  const nlohmann::json report = RunKernels({"--numerics=portable"});
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(TypesOf(report, "gemm qkv"), std::set<std::string>{"bf16"});
}

TEST(BenchEngine, ThePicturesRoofIsOfTheProductsType) {
  const TestFolder folder("bench-engine");
  const std::string svg = folder / "roofline.svg";
  const ProgramRun run = RunProgram({"tandem", "bench", "engine", kTinyModel, "--threads=1",
                                     "--weights=int8", "--prefill=8", "--decode=1", "--contexts=8",
                                     "--time=0", "--json", absl::StrCat("--svg=", svg)});
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const auto report = nlohmann::json::parse(run.output.substr(run.output.find("{\"numerics_id")));
  std::stringstream picture;
  picture << std::ifstream(svg).rdbuf();
  const std::string text = picture.str();
  const size_t end = text.find(" GFLOP/s<");
  ASSERT_NE(end, std::string::npos) << text;
  const double drawn = std::atof(text.substr(text.rfind('>', end) + 1).c_str());
  EXPECT_NEAR(drawn, report["roof_int8_flops"].get<double>() / 1e9, 1);
}

}  // namespace
}  // namespace tandem::testing
