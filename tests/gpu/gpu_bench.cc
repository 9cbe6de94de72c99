// Times the CUDA kernels against this GPU's own ceilings, measured in the same run: copy bandwidth,
// and cuBLASLt's products where the library is there. Random data. Each figure is the median over
// launches of a graph of 20 calls, whose buffers alternate where they would fit the L2.
//
//   gpu_bench               prints each result
//   gpu_bench --json FILE   also writes them for tests/gpu/fill_table.py
//   gpu_bench --list        prints the names of the results, on any machine
//   gpu_bench --describe    says which GPU and which cuBLASLt there is; exit status 77 without a
//   GPU
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_checksum.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_timing.h"
#include "kernels/api/device_weight_type.h"
#include "tests/gpu/bench_results.h"
#include "tests/gpu/cublaslt.h"

namespace tandem::kernels {
namespace {

// Ends the program: a benchmark without its device has nothing to say.
template <typename T>
T Get(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

constexpr int32_t kHeadDim = 128;
constexpr int32_t kBlockTokens = 32;

// Attention of one new token for each of `batch` sequences. Without `split` one item computes a
// sequence's KV head.
struct Decode {
  int32_t batch, length;
  KvType type;
  bool split;
};
// One causal prompt.
struct Prefill {
  int32_t length, head_dim;
};
struct Product {
  DeviceWeightType type;
  int32_t rows, n, k;
};

// What follows a bf16 product's name in those of its other results.
constexpr const char *kAdded = " added", *kFastest = " fastest tile", *kLibrary = " cuBLASLt";

const char* NameOf(KvType type) {
  return type == KvType::kBf16 ? "bf16" : type == KvType::kInt8 ? "int8" : "fp8";
}
std::string NameOf(const Decode& decode) {
  return absl::StrCat("decode ", NameOf(decode.type), " ", decode.batch, " x ", decode.length,
                      decode.split ? "" : " unsplit");
}
std::string NameOf(const Prefill& prefill) {
  return absl::StrCat("prefill ", prefill.length, " x ", prefill.head_dim);
}
std::string NameOf(const Product& product) {
  return absl::StrCat("gemm ", DeviceWeightTypeName(product.type), " ", product.rows, " x ",
                      product.n, " x ", product.k);
}

class Bench {
 public:
  // Both outlive the bench. `prefix` begins every name.
  Bench(DeviceKernels kernels, std::string prefix, Results& results)
      : device_(Get(OpenCudaDevice(0, kernels))),
        stream_(Get(device_->NewStream())),
        cublaslt_(CublasLt::Open(*device_)),
        prefix_(std::move(prefix)),
        results_(results) {}

  const DeviceProperties& properties() const { return device_->properties(); }
  const char* numerics() const { return device_->ops().numerics; }
  const absl::Status cublaslt_status() const { return cublaslt_.status(); }

  void MeasureCopy() {
    const size_t bytes = size_t{4} << 30;
    const DeviceBuffer from = RandomBf16(bytes / 2), to = Allocate(bytes);
    const double ms = Time([&](int) { stream_->CopyWithin(to.data(), from.data(), bytes); });
    copy_bytes_per_ms_ = 2.0 * static_cast<double>(bytes) / ms;
    Report({"copy", ms, 2.0 * static_cast<double>(bytes), 0, "read and written"});
  }

  // 16 query heads, 2 KV heads, head_dim 128.
  void Measure(const Decode& decode) {
    const auto& [batch, length, type, split] = decode;
    const int32_t heads = 16, kv_heads = 2, blocks = length / kBlockTokens;
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> tables;
    for (int32_t i = 0; i < batch; ++i) {
      sequences.push_back({i, 1, length - 1, i * blocks});
      for (int32_t b = 0; b < blocks; ++b) tables.push_back(i * blocks + b);
    }
    std::shuffle(tables.begin(), tables.end(), random_);
    DeviceAttentionArgs args =
        Args(sequences, heads, {kv_heads, kHeadDim, kBlockTokens, type}, split);
    const DeviceBuffer dtables = Upload(tables);
    const size_t kv_bytes = tables.size() * static_cast<size_t>(args.layer.block_stride_bytes);
    // Measure on several caches alternately, which together exceed the L2 by far.
    std::vector<DeviceBuffer> caches;
    for (int i = 0; i < 6; ++i) caches.push_back(RandomBf16(kv_bytes / 2));
    const size_t q_size = static_cast<size_t>(batch * heads * kHeadDim);
    const DeviceBuffer q = RandomBf16(q_size), out = Allocate(q_size * 2);
    args.q = q.as<Bf16Bits>();
    args.tables = dtables.as<int32_t>();
    args.out = out.as<Bf16Bits>();
    const double ms = Time([&](int i) {
      args.layer.base = caches[static_cast<size_t>(i) % caches.size()].data();
      device_->ops().attention(args, *stream_);
    });
    Report({NameOf(decode), ms, static_cast<double>(kv_bytes), 0, ""});
  }

  // Blocks of 128 KiB, as many as a stage of the KV transfer's copies holds.
  void MeasureChecksum() {
    const int64_t bytes = 128 << 10, count = 64;
    std::vector<DeviceBuffer> data;
    for (int i = 0; i < 16; ++i) data.push_back(RandomBf16(static_cast<size_t>(bytes * count / 2)));
    const DeviceBuffer checksums = Allocate(static_cast<size_t>(count) * sizeof(uint64_t));
    const double ms = Time([&](int i) {
      const DeviceChecksumArgs args = {data[static_cast<size_t>(i) % data.size()].data(), bytes,
                                       bytes, static_cast<int32_t>(count),
                                       checksums.as<uint64_t>()};
      device_->ops().checksum(args, *stream_);
    });
    Report({"checksum 64 x 128 KiB", ms, static_cast<double>(bytes * count), 0, ""});
  }

  // With head_dim 128: 32 query heads, 8 KV heads. As many heads as make as many elements,
  // whatever their size.
  void Measure(const Prefill& prefill) {
    const auto& [length, head_dim] = prefill;
    const int32_t heads = 32 * kHeadDim / head_dim, kv_heads = 8 * kHeadDim / head_dim;
    const int32_t blocks = length / kBlockTokens;
    std::vector<int32_t> tables;
    for (int32_t b = 0; b < blocks; ++b) tables.push_back(b);
    std::shuffle(tables.begin(), tables.end(), random_);
    DeviceAttentionArgs args =
        Args({{0, length, 0, 0}}, heads, {kv_heads, head_dim, kBlockTokens, KvType::kBf16}, true);
    const DeviceBuffer dtables = Upload(tables);
    const DeviceBuffer cache =
        RandomBf16(tables.size() * static_cast<size_t>(args.layer.block_stride_bytes) / 2);
    const size_t q_size = static_cast<size_t>(length) * heads * head_dim;
    const DeviceBuffer q = RandomBf16(q_size), out = Allocate(q_size * 2);
    args.q = q.as<Bf16Bits>();
    args.tables = dtables.as<int32_t>();
    args.layer.base = cache.data();
    args.out = out.as<Bf16Bits>();
    const double ms = Time([&](int) { device_->ops().attention(args, *stream_); });
    const double operations = 2.0 * heads * static_cast<double>(length) * length * head_dim;
    Report({NameOf(prefill), ms, 0, operations, ""});
  }

  // With the tile that the kernel chooses by shape, with the fastest, adding to y, and by cuBLASLt.
  void MeasureBf16(const Product& product) {
    const auto& [type, rows, n, k] = product;
    const DeviceBuffer x = RandomBf16(static_cast<size_t>(rows) * k);
    std::vector<DeviceBuffer> weights;
    for (int i = 0; i < 8; ++i) weights.push_back(RandomBf16(static_cast<size_t>(n) * k));
    const DeviceBuffer y = Allocate(static_cast<size_t>(rows) * n * sizeof(float));
    DeviceGemmArgs args;
    args.x = x.as<Bf16Bits>();
    args.rows = rows;
    args.n = n;
    args.k = k;
    args.y = y.as<float>();
    args.multiprocessors = device_->properties().multiprocessors;
    const auto enqueue = [&](int i) {
      args.w = weights[static_cast<size_t>(i) % weights.size()].as<Bf16Bits>();
      device_->ops().gemm(args, *stream_);
    };
    const double ms = Time(enqueue);
    const double bytes = 2.0 * n * k + 2.0 * rows * k + 4.0 * rows * n;
    const double operations = 2.0 * rows * n * k;
    Report({NameOf(product), ms, bytes, operations, ""});
    args.add_to_y = true;
    Report({NameOf(product) + kAdded, Time(enqueue), bytes + 4.0 * rows * n, operations, ""});
    args.add_to_y = false;
    // What a search for tiles would gain over the choice by shape.
    DeviceGemmTile fastest;
    double least_ms = 0;
    for (args.tile = 0;; ++args.tile) {
      const DeviceGemmTile tile = device_->ops().gemm_tile(type, args.tile);
      if (tile.shared_bytes == 0) break;
      const double tile_ms = Time(enqueue);
      if (fastest.shared_bytes > 0 && tile_ms >= least_ms) continue;
      fastest = tile;
      least_ms = tile_ms;
    }
    Report({NameOf(product) + kFastest, least_ms, bytes, operations,
            absl::StrCat(fastest.rows, " x ", fastest.n, " x ", fastest.k)});
    if (!cublaslt_.ok()) return;
    args.w = weights[0].as<Bf16Bits>();
    if (const absl::Status status = CheckLibrary(args); !status.ok()) {
      std::printf("%s%s: %s\n", NameOf(product).c_str(), kLibrary, status.ToString().c_str());
      return;
    }
    const double library_ms = Time([&](int i) {
      args.w = weights[static_cast<size_t>(i) % weights.size()].as<Bf16Bits>();
      (*cublaslt_)->Multiply(args, *stream_);
    });
    Report({NameOf(product) + kLibrary, library_ms, bytes, operations, ""});
  }

  // Rounding x to int8 or e4m3 counts as part of the product where it is. Scales keep what they
  // are: any number serves for a time.
  void MeasureQuantised(const Product& product) {
    const auto& [type, rows, n, k] = product;
    if (!HasProducts(device_->ops(), type)) return;
    const DeviceBuffer x = RandomBf16(static_cast<size_t>(rows) * k);
    const DeviceRowBytes row = RowBytesOf(type, k);
    const size_t values = row.values * static_cast<size_t>(n);
    const size_t scales = std::max<size_t>(row.scales * static_cast<size_t>(n), 16);
    std::vector<DeviceBuffer> weights;
    for (int i = 0; i < 8; ++i) weights.push_back(RandomBf16((values + scales) / 2));
    const DeviceBuffer y = Allocate(static_cast<size_t>(rows) * n * sizeof(float));
    const DeviceRoundedBytes rounded = RoundedBytesOf(type, rows, k);
    const DeviceBuffer x_rounded = Allocate(rounded.values), x_scales = Allocate(rounded.scales);
    DeviceGemmArgs args;
    args.type = type;
    args.x = x.as<Bf16Bits>();
    args.x_rounded = x_rounded.data();
    args.x_scales = x_scales.as<float>();
    args.rows = rows;
    args.n = n;
    args.k = k;
    args.y = y.as<float>();
    args.multiprocessors = device_->properties().multiprocessors;
    const double ms = Time([&](int i) {
      const DeviceBuffer& w = weights[static_cast<size_t>(i) % weights.size()];
      args.packed = w.data();
      args.scales = w.data() + values;
      if (ActivationGroup(type) > 0) {
        device_->ops().quantise({args.x, rows, k, x_rounded.data(), x_scales.as<float>(), type},
                                *stream_);
      }
      device_->ops().gemm(args, *stream_);
    });
    const double bytes = static_cast<double>(values + scales) + 2.0 * rows * k + 4.0 * rows * n;
    Report({NameOf(product), ms, bytes, 2.0 * rows * n * k, ""});
  }

 private:
  DeviceBuffer Allocate(size_t bytes) {
    return Get(device_->Allocate(DeviceBuffer::Kind::kDevice, bytes));
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& values) {
    DeviceBuffer buffer = Allocate(std::max<size_t>(1, values.size()) * sizeof(T));
    stream_->CopyIn(buffer.data(), values.data(), values.size() * sizeof(T));
    Require();
    return buffer;
  }
  // bf16 values of magnitude near 1: random signs, exponents and mantissas of a small range.
  DeviceBuffer RandomBf16(size_t count) {
    std::vector<Bf16Bits> values(std::min<size_t>(count, 1 << 20));
    for (Bf16Bits& value : values) {
      value = static_cast<Bf16Bits>((random_() & 0x807fu) | (0x3e80u + (random_() & 0x100u)));
    }
    DeviceBuffer buffer = Allocate(count * sizeof(Bf16Bits));
    for (size_t done = 0; done < count; done += values.size()) {
      const size_t part = std::min(values.size(), count - done);
      stream_->CopyIn(buffer.as<Bf16Bits>() + done, values.data(), part * sizeof(Bf16Bits));
    }
    Require();
    return buffer;
  }

  void Require() {
    const absl::Status status = stream_->Synchronize();
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::exit(1);
  }

  // Milliseconds of one call of enqueue(i).
  double Time(absl::FunctionRef<void(int)> enqueue) {
    return Get(TimeInGraph(*device_, *stream_, {}, enqueue));
  }
  void Report(Results::Row row) {
    row.name = prefix_ + row.name;
    results_.Add(row, copy_bytes_per_ms_);
  }

  // Lets cuBLASLt choose for a product, and compares its first results with the kernel's: a figure
  // of another product would mislead. Errors: the library's; kInternal where results differ.
  absl::Status CheckLibrary(DeviceGemmArgs args) {
    if (const absl::Status chosen = (*cublaslt_)->Choose(args); !chosen.ok()) return chosen;
    std::vector<float> ours(static_cast<size_t>(args.n)), theirs(ours.size());
    args.tile = -1;
    device_->ops().gemm(args, *stream_);
    stream_->CopyOut(ours.data(), args.y, ours.size() * sizeof(float));
    (*cublaslt_)->Multiply(args, *stream_);
    stream_->CopyOut(theirs.data(), args.y, theirs.size() * sizeof(float));
    Require();
    // Terms are at most 4. Two orders of k fp32 additions differ by far less than this.
    const float tolerance = 1e-5f * static_cast<float>(args.k);
    for (size_t i = 0; i < ours.size(); ++i) {
      if (std::abs(ours[i] - theirs[i]) <= tolerance) continue;
      return absl::InternalError(absl::StrCat("y[0, ", i, "] is ", theirs[i], ", expected ",
                                              ours[i], " within ", tolerance));
    }
    return absl::OkStatus();
  }

  // Attention over `sequences`, whose tables number blocks from 0 in order.
  DeviceAttentionArgs Args(const std::vector<AttentionSequence>& sequences, int32_t heads,
                           const KvShape& shape, bool split) {
    const int32_t kv_heads = shape.num_kv_heads;
    const int64_t shared = device_->properties().shared_bytes_per_multiprocessor;
    const int32_t filling =
        device_->properties().multiprocessors * device_->ops().narrow_items_at_once(shape, shared);
    const int32_t wanted = split ? std::max(1, filling / kv_heads) : 1;
    int32_t records = 0;
    for (const AttentionSequence& sequence : sequences) {
      records += (sequence.first_position + sequence.num_rows + 255) / 256 * sequence.num_rows;
    }
    const AttentionSchedule schedule =
        ScheduleAttention({heads, kv_heads, 0, wanted, records}, sequences);
    const AttentionCounts counts = {static_cast<int32_t>(schedule.narrow_items.size()),
                                    static_cast<int32_t>(schedule.wide_items.size()),
                                    static_cast<int32_t>(schedule.merges.size())};
    narrow_ = Upload(schedule.narrow_items);
    wide_ = Upload(schedule.wide_items);
    merges_ = Upload(schedule.merges);
    counts_ = Upload(std::vector<AttentionCounts>{counts});
    records_ = Allocate(static_cast<size_t>(schedule.merges.empty() ? 1 : records) *
                        static_cast<size_t>(heads) * static_cast<size_t>(shape.head_dim + 2) *
                        sizeof(float));
    DeviceAttentionArgs args;
    args.num_heads = heads;
    args.scale = 0.088f;
    args.layer.shape = shape;
    args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(args.layer.shape));
    args.narrow_items = narrow_.as<AttentionItem>();
    args.wide_items = wide_.as<AttentionItem>();
    args.merges = merges_.as<AttentionMerge>();
    args.counts = counts_.as<AttentionCounts>();
    args.launch = counts;
    args.records = records_.as<float>();
    args.multiprocessors = device_->properties().multiprocessors;
    return args;
  }

  std::mt19937_64 random_{20240613};
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceStream> stream_;
  const absl::StatusOr<std::unique_ptr<CublasLt>> cublaslt_;
  const std::string prefix_;
  Results& results_;
  double copy_bytes_per_ms_ = 0;
  DeviceBuffer narrow_, wide_, merges_, counts_, records_;
};

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
  const auto attention = [](Bench& bench, const auto& what) { bench.Measure(what); };
  for (const auto& [batch, length] :
       {std::pair(256, 256), std::pair(128, 512), std::pair(64, 1024), std::pair(32, 2048),
        std::pair(16, 4096), std::pair(8, 8192), std::pair(4, 16384), std::pair(2, 32768),
        std::pair(1, 65536), std::pair(1, 131072), std::pair(8, 65536)}) {
    const bool some = length == 1024 || length == 131072;
    for (KvType type : {KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
      add(Decode{batch, length, type, true}, some && type == KvType::kBf16, attention);
    }
    add(Decode{batch, length, KvType::kBf16, false}, false, attention);
  }
  cases.push_back({"checksum 64 x 128 KiB", [](Bench& bench) { bench.MeasureChecksum(); }, false});
  for (int32_t length : {2048, 4096, 8192, 16384}) {
    add(Prefill{length, kHeadDim}, length == 8192, attention);
  }
  for (int32_t head_dim : {64, 256}) add(Prefill{8192, head_dim}, true, attention);
  const auto bf16 = [](Bench& bench, const Product& product) { bench.MeasureBf16(product); };
  const size_t first = cases.size();
  for (int32_t rows : {1, 16, 64, 128, 512, 2048, 8192}) {
    add(Product{DeviceWeightType::kBf16, rows, 4096, 4096}, true, bf16);
  }
  for (int32_t rows : {1, 16, 64, 2048, 8192}) {
    add(Product{DeviceWeightType::kBf16, rows, 28672, 4096}, true, bf16);
  }
  for (size_t i = first; i < cases.size(); ++i) cases[i].bf16_product = true;
  const auto other = [](Bench& bench, const Product& product) { bench.MeasureQuantised(product); };
  for (DeviceWeightType type : {DeviceWeightType::kInt8, DeviceWeightType::kInt4,
                                DeviceWeightType::kFp8, DeviceWeightType::kFp8Rows}) {
    for (int32_t rows : {1, 16, 64, 2048, 8192})
      add(Product{type, rows, 28672, 4096}, false, other);
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

void RunAll(const char* json_path) {
  Results results;
  Bench own(DeviceKernels::kOwn, "", results);
  if (!own.cublaslt_status().ok()) {
    std::printf("no figures of cuBLASLt: %s\n", own.cublaslt_status().ToString().c_str());
  }
  const auto write = [&] {
    if (json_path == nullptr || results.Write(json_path, own.properties(), own.numerics())) return;
    std::fprintf(stderr, "cannot write %s\n", json_path);
    std::exit(1);
  };
  for (const Case& one : Cases()) {
    one.run(own);
    write();
  }
  Bench portable(DeviceKernels::kPortable, "portable ", results);
  if (std::strcmp(own.numerics(), portable.numerics()) == 0) return;
  for (const Case& one : Cases()) {
    if (!one.portable_too) continue;
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
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--list") {
    tandem::kernels::List();
    return 0;
  }
  if (option != "" && option != "--describe" && (option != "--json" || argc != 3)) {
    std::fprintf(stderr, "usage: gpu_bench [--describe | --list | --json FILE]\n");
    return 2;
  }
  std::printf("%s\n%s\n", tandem::kernels::DescribeCuda().c_str(),
              tandem::kernels::CublasLt::Describe().c_str());
  if (tandem::kernels::CountCudaDevices() == 0) return kNoGpu;
  if (option != "--describe") tandem::kernels::RunAll(option == "--json" ? argv[2] : nullptr);
  return 0;
}
