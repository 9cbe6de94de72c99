// Times the CUDA kernels against this GPU's own ceilings, measured in the same run: copy bandwidth,
// and cuBLASLt's products where the library is there (kernel_bench.h says how).
//
//   gpu_bench                         prints each result
//   gpu_bench --only TEXT [...]       measures the copy, and what has TEXT in its name
//   gpu_bench --json FILE [...]       also writes the results for tests/gpu/fill_table.py
//   gpu_bench --list                  prints the names of the results, on any machine
//   gpu_bench --describe              says which GPU and which cuBLASLt there is; exit status 77
//                                     without a GPU
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "kernels/api/device.h"
#include "tests/gpu/bench_results.h"
#include "tests/gpu/cublaslt.h"
#include "tests/gpu/kernel_bench.h"

namespace tandem::kernels {
namespace {

constexpr int32_t kHeadDim = 128;

// A case runs on one bench, and has a result of its own name.
struct Case {
  std::string name;
  std::function<void(Bench&)> run;
  bool portable_too;          // also with the portable kernels, on a device that has its own
  bool bf16_product = false;  // it has results of the other names too
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{"copy", [](Bench& bench) { bench.MeasureCopy(); }, true}};
  const auto add = [&cases](const auto& what, bool portable_too, const auto& measure) {
    cases.push_back(
        {NameOf(what), [what, measure](Bench& bench) { measure(bench, what); }, portable_too});
  };
  const auto plain = [](Bench& bench, const auto& what) { bench.Measure(what); };
  for (const auto& [batch, length] :
       {std::pair(256, 256), std::pair(128, 512), std::pair(64, 1024), std::pair(32, 2048),
        std::pair(16, 4096), std::pair(8, 8192), std::pair(4, 16384), std::pair(2, 32768),
        std::pair(1, 65536), std::pair(1, 131072), std::pair(8, 65536)}) {
    const bool some = length == 1024 || length == 131072;
    for (KvType type : {KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
      add(Decode{batch, length, type, true}, some && type == KvType::kBf16, plain);
    }
    add(Decode{batch, length, KvType::kBf16, false}, false, plain);
  }
  add(Merge{1, 131072}, false, plain);
  add(Merge{8, 65536}, false, plain);
  for (int32_t rows : {1, 64}) {
    for (bool filters : {false, true}) add(Sample{rows, filters}, false, plain);
  }
  for (int32_t rows : {1, 2048}) {
    add(Norm{rows}, false, plain);
    add(Rope{rows}, false, plain);
  }
  // What a stage of the copies through the host's arena holds, and a payload from device memory.
  add(ChecksumCase{64, 128}, false, plain);
  add(ChecksumCase{1, 1024}, false, plain);
  for (int32_t length : {2048, 4096, 8192, 16384}) {
    add(Prefill{length, kHeadDim}, length == 8192, plain);
  }
  for (int32_t head_dim : {64, 256}) add(Prefill{8192, head_dim}, true, plain);
  const auto bf16 = [](Bench& bench, const BenchProduct& product) { bench.MeasureBf16(product); };
  const size_t first = cases.size();
  for (int32_t rows : {1, 16, 64, 128, 512, 2048, 8192}) {
    add(BenchProduct{DeviceWeightType::kBf16, rows, 4096, 4096}, true, bf16);
  }
  for (int32_t rows : {1, 16, 64, 2048, 8192}) {
    add(BenchProduct{DeviceWeightType::kBf16, rows, 28672, 4096}, true, bf16);
  }
  for (size_t i = first; i < cases.size(); ++i) cases[i].bf16_product = true;
  const auto other = [](Bench& bench, const BenchProduct& product) {
    bench.MeasureQuantised(product);
  };
  for (DeviceWeightType type : {DeviceWeightType::kInt8, DeviceWeightType::kInt4,
                                DeviceWeightType::kFp8, DeviceWeightType::kFp8Rows}) {
    for (int32_t rows : {1, 16, 64, 2048, 8192})
      add(BenchProduct{type, rows, 28672, 4096}, false, other);
  }
  return cases;
}

// Prints the name of every result that a device's own kernels may have.
void List() {
  for (const Case& one : Cases()) {
    std::printf("%s\n", one.name.c_str());
    if (!one.bf16_product) continue;
    for (const char* words : {kAdded, kFastest, kLibrary}) {
      std::printf("%s%s\n", one.name.c_str(), words);
    }
  }
}

struct Options {
  const char* json_path = nullptr;  // of the results' file; none if nullptr
  std::string only;                 // what a case's name must hold; the copy runs always
};

bool Wanted(const Case& one, const Options& options) {
  return one.name == "copy" || absl::StrContains(one.name, options.only);
}

void Run(const Options& options) {
  Results results;
  Bench own(DeviceKernels::kOwn, "", results);
  if (!own.cublaslt_status().ok()) {
    std::printf("no figures of cuBLASLt: %s\n", own.cublaslt_status().ToString().c_str());
  }
  const auto write = [&] {
    std::fflush(stdout);
    const char* path = options.json_path;
    if (path == nullptr || results.Write(path, own.properties(), own.numerics())) return;
    std::fprintf(stderr, "cannot write %s\n", path);
    std::exit(1);
  };
  for (const Case& one : Cases()) {
    if (!Wanted(one, options)) continue;
    one.run(own);
    write();
  }
  Bench portable(DeviceKernels::kPortable, "portable ", results);
  if (std::strcmp(own.numerics(), portable.numerics()) == 0) return;
  for (const Case& one : Cases()) {
    if (!one.portable_too || !Wanted(one, options)) continue;
    one.run(portable);
    write();
  }
}

}  // namespace
}  // namespace tandem::kernels

// run_all.sh reads it: the program loaded, and there is no GPU. A program that cannot load ends
// otherwise.
constexpr int kNoGpu = 77;

int main(int argc, char** argv) {
  tandem::kernels::Options options;
  bool describe = false, list = false;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view name = argv[i];
    if (name == "--list") {
      list = true;
    } else if (name == "--describe") {
      describe = true;
    } else if (name == "--json" && i + 1 < argc) {
      options.json_path = argv[++i];
    } else if (name == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr,
                   "gpu_bench: '%s' is unknown or lacks its value; expected --only TEXT, "
                   "--json FILE, --list or --describe\n",
                   argv[i]);
      return 2;
    }
  }
  if (list) {
    tandem::kernels::List();
    return 0;
  }
  std::printf("%s\n%s\n", tandem::kernels::DescribeCuda().c_str(),
              tandem::kernels::CublasLt::Describe().c_str());
  if (tandem::kernels::CountCudaDevices() == 0) return kNoGpu;
  if (!describe) tandem::kernels::Run(options);
  return 0;
}
