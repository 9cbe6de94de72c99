// One GPU's kernels, timed: each Measure adds results to a list.
//
// Random data. Each figure is the median over launches of a graph of 20 calls, whose buffers
// alternate where they would fit the L2.
// Thread safety: one thread at a time. Owner: the benchmark. Errors end the process: a benchmark
// without its device has nothing to say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/device.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "tests/gpu/bench_results.h"
#include "tests/gpu/cublaslt.h"

namespace tandem::kernels {

// Attention of one new token for each of `batch` sequences, over `length` tokens. Without `split`
// one item computes a sequence's KV head.
struct Decode {
  int32_t batch, length;
  KvType type;
  bool split;
};
// The end of Flash-Decoding alone: the merge of a sequence's partitions.
struct Merge {
  int32_t batch, length;
};
// One causal prompt.
struct Prefill {
  int32_t length, head_dim;
};
// A token for each row of logits.
struct Sample {
  int32_t rows;
  bool filters;  // penalties, min-p, top-k and top-p; without them: the largest logit
};
// RMSNorm of rows of 4,096 values.
struct Norm {
  int32_t rows;
};
// RoPE and the cache write of rows with 32 query and 8 KV heads of 128.
struct Rope {
  int32_t rows;
};
// Of payloads of a KV transfer.
struct ChecksumCase {
  int32_t count, kib;
};
struct BenchProduct {
  DeviceWeightType type;
  int32_t rows, n, k;
};

std::string NameOf(const Decode& decode);
std::string NameOf(const Merge& merge);
std::string NameOf(const Prefill& prefill);
std::string NameOf(const Sample& sample);
std::string NameOf(const Norm& norm);
std::string NameOf(const Rope& rope);
std::string NameOf(const ChecksumCase& checksum);
std::string NameOf(const BenchProduct& product);

// What follows a bf16 product's name in those of its other results.
inline constexpr const char *kAdded = " added", *kFastest = " fastest tile",
                            *kLibrary = " cuBLASLt";

class Bench {
 public:
  // `results` outlives the bench. `prefix` begins every name.
  Bench(DeviceKernels kernels, std::string prefix, Results& results);

  const DeviceProperties& properties() const { return device_->properties(); }
  const char* numerics() const;
  const absl::Status cublaslt_status() const { return cublaslt_.status(); }

  // Other results compare themselves with it.
  void MeasureCopy();
  // 16 query heads, 2 KV heads, head_dim 128.
  void Measure(const Decode& decode);
  void Measure(const Merge& merge);
  // With head_dim 128: 32 query heads, 8 KV heads. As many heads as make as many elements,
  // whatever their size.
  void Measure(const Prefill& prefill);
  // A vocabulary of 128,256.
  void Measure(const Sample& sample);
  void Measure(const Norm& norm);
  void Measure(const Rope& rope);
  void Measure(const ChecksumCase& checksum);
  // With the tile that the kernel chooses by shape, with the fastest, adding to y, and by cuBLASLt.
  void MeasureBf16(const BenchProduct& product);
  // Rounding x to int8 or e4m3 counts as part of the product where it is. Scales keep what they
  // are: any number serves for a time.
  void MeasureQuantised(const BenchProduct& product);

 private:
  DeviceBuffer Allocate(size_t bytes);
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& values);
  // NewTimingValues, from a seed of its own each time.
  DeviceBuffer RandomBf16(size_t count);
  void Require();
  // Milliseconds of one call of enqueue(i).
  double Time(absl::FunctionRef<void(int)> enqueue);
  void Report(Results::Row row);

  // Lets cuBLASLt choose for a product, and compares its first results with the kernel's: a figure
  // of another product would mislead. Errors: the library's; kInternal where results differ.
  absl::Status CheckLibrary(DeviceGemmArgs args);

  // `decode`'s sequences, whose tables name shuffled blocks.
  struct Sequences {
    std::vector<AttentionSequence> list;
    std::vector<int32_t> tables;
  };
  Sequences DecodeSequences(int32_t batch, int32_t length);
  // Attention over `sequences`, whose tables number blocks from 0 in order.
  DeviceAttentionArgs Args(const std::vector<AttentionSequence>& sequences, int32_t heads,
                           const KvShape& shape, bool split);

  std::mt19937_64 random_{20240613};
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceStream> stream_;
  const absl::StatusOr<std::unique_ptr<CublasLt>> cublaslt_;
  const std::string prefix_;
  Results& results_;
  double copy_bytes_per_ms_ = 0;
  DeviceBuffer narrow_, wide_, merges_, counts_, records_;
};

}  // namespace tandem::kernels
