// Times the CUDA kernels against this GPU's own ceilings, measured in the same run: copy bandwidth,
// and for compute the figure itself. Random data; buffers rotate where they would fit the L2;
// medians of repeated graph-free launches between events, after warming up.
//
//   gpu_bench              the table
//   gpu_bench --describe   says which GPU there is; exit status 77 without one
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/api/attention_schedule.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_checksum.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"

namespace tandem::kernels {
namespace {

constexpr int kWarmups = 3;
constexpr int kRepeats = 15;
constexpr int kItemsPerMultiprocessor = 4;
constexpr int32_t kRecordsMax = 1024;

// Ends the program: a benchmark without its device has nothing to say.
template <typename T>
T Get(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

class Bench {
 public:
  explicit Bench(DeviceKernels kernels)
      : device_(Get(OpenCudaDevice(0, kernels))),
        stream_(Get(device_->NewStream())),
        begin_(Get(device_->NewEvent())),
        end_(Get(device_->NewEvent())) {}

  void Run() {
    MeasureCopy();
    for (const auto& [batch, length] :
         {std::pair(256, 256), std::pair(128, 512), std::pair(64, 1024), std::pair(32, 2048),
          std::pair(16, 4096), std::pair(8, 8192), std::pair(4, 16384), std::pair(2, 32768),
          std::pair(1, 65536), std::pair(1, 131072)}) {
      for (KvType type : {KvType::kBf16, KvType::kInt8, KvType::kFp8}) {
        MeasureDecode({batch, length, type});
      }
    }
    MeasureChecksum();
    for (int32_t length : {2048, 4096, 8192, 16384}) MeasurePrefill({length});
    for (int32_t head_dim : {64, 256}) MeasurePrefill({8192, head_dim});
    MeasureGemms();
    for (DeviceWeightType type : {DeviceWeightType::kInt8, DeviceWeightType::kInt4,
                                  DeviceWeightType::kFp8, DeviceWeightType::kFp8Rows}) {
      if (!HasProducts(device_->ops(), type)) continue;
      for (int32_t rows : {1, 16, 64, 2048, 8192}) MeasureQuantised(type, rows, 28672, 4096);
    }
  }
  // Some of it, for the portable kernels on a device whose own were measured.
  void RunPortable() {
    std::printf("the same GPU with %s\n", numerics());
    MeasureCopy();
    MeasureDecode({64, 1024, KvType::kBf16});
    MeasureDecode({1, 131072, KvType::kBf16});
    for (int32_t head_dim : {64, 128, 256}) MeasurePrefill({8192, head_dim});
    MeasureGemms();
  }
  const char* numerics() const { return device_->ops().numerics; }

 private:
  static constexpr int32_t kHeadDim = 128;
  static constexpr int32_t kBlockTokens = 32;

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

  // Median milliseconds of enqueue(i), i counting the repeats.
  template <typename Enqueue>
  double Time(const Enqueue& enqueue) {
    std::vector<double> times;
    for (int i = 0; i < kWarmups + kRepeats; ++i) {
      stream_->Record(*begin_);
      enqueue(i);
      stream_->Record(*end_);
      Require();
      if (i >= kWarmups) times.push_back(Get(end_->MillisecondsSince(*begin_)));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void MeasureCopy() {
    const size_t bytes = size_t{4} << 30;
    const DeviceBuffer from = RandomBf16(bytes / 2), to = Allocate(bytes);
    const double ms = Time([&](int) { stream_->CopyWithin(to.data(), from.data(), bytes); });
    copy_bytes_per_ms_ = 2.0 * static_cast<double>(bytes) / ms;
    std::printf("copy                 %8.0f GB/s read and written\n", copy_bytes_per_ms_ / 1e6);
  }

  // Attention over `sequences`, whose tables number blocks from 0 in order.
  DeviceAttentionArgs Args(const std::vector<AttentionSequence>& sequences, int32_t heads,
                           const KvShape& shape) {
    const int32_t kv_heads = shape.num_kv_heads;
    const int32_t wanted =
        std::max(1, device_->properties().multiprocessors * kItemsPerMultiprocessor / kv_heads);
    const AttentionSchedule schedule =
        ScheduleAttention({heads, kv_heads, 0, wanted, kRecordsMax}, sequences);
    const AttentionCounts counts = {static_cast<int32_t>(schedule.narrow_items.size()),
                                    static_cast<int32_t>(schedule.wide_items.size()),
                                    static_cast<int32_t>(schedule.merges.size())};
    narrow_ = Upload(schedule.narrow_items);
    wide_ = Upload(schedule.wide_items);
    merges_ = Upload(schedule.merges);
    counts_ = Upload(std::vector<AttentionCounts>{counts});
    records_ = Allocate(size_t{kRecordsMax} * static_cast<size_t>(kv_heads) * kNarrowVectors *
                        static_cast<size_t>(shape.head_dim + 2) * sizeof(float));
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

  // The decode table: 16 query heads, 2 KV heads, head_dim 128.
  struct Decode {
    int32_t batch, length;
    KvType type;
  };
  void MeasureDecode(const Decode& decode) {
    const auto& [batch, length, type] = decode;
    const int32_t heads = 16, kv_heads = 2, blocks = length / kBlockTokens;
    std::vector<AttentionSequence> sequences;
    std::vector<int32_t> tables;
    for (int32_t i = 0; i < batch; ++i) {
      sequences.push_back({i, 1, length - 1, i * blocks});
      for (int32_t b = 0; b < blocks; ++b) tables.push_back(i * blocks + b);
    }
    std::shuffle(tables.begin(), tables.end(), random_);
    DeviceAttentionArgs args = Args(sequences, heads, {kv_heads, kHeadDim, kBlockTokens, type});
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
    const double rate = static_cast<double>(kv_bytes) / ms;
    const char* name = type == KvType::kBf16 ? "bf16" : type == KvType::kInt8 ? "int8" : "fp8";
    std::printf("decode %-4s %4d x %6d  %8.1f us  %6.0f GB/s  %3.0f %% of copy\n", name, batch,
                length, ms * 1e3, rate / 1e6, 100 * rate / copy_bytes_per_ms_);
  }

  // Blocks of 128 KiB, as many as a stage of the KV transfer's copies holds.
  void MeasureChecksum() {
    const int64_t bytes = 128 << 10, count = 64;
    const DeviceBuffer data = RandomBf16(static_cast<size_t>(bytes * count / 2));
    const DeviceBuffer checksums = Allocate(static_cast<size_t>(count) * sizeof(uint64_t));
    const DeviceChecksumArgs args = {data.data(), bytes, bytes, static_cast<int32_t>(count),
                                     checksums.as<uint64_t>()};
    const double ms = Time([&](int) { device_->ops().checksum(args, *stream_); });
    std::printf("checksum %d x %d KiB   %8.1f us  %6.0f GB/s\n", static_cast<int>(count),
                static_cast<int>(bytes >> 10), ms * 1e3,
                static_cast<double>(bytes * count) / ms / 1e6);
  }

  // One causal prompt: 32 query heads, 8 KV heads, head_dim 128.
  // As many heads as make as many elements, whatever their size.
  struct Prefill {
    int32_t length;
    int32_t head_dim = kHeadDim;
  };
  void MeasurePrefill(const Prefill& prefill) {
    const auto& [length, head_dim] = prefill;
    const int32_t heads = 32 * kHeadDim / head_dim, kv_heads = 8 * kHeadDim / head_dim;
    const int32_t blocks = length / kBlockTokens;
    std::vector<int32_t> tables;
    for (int32_t b = 0; b < blocks; ++b) tables.push_back(b);
    std::shuffle(tables.begin(), tables.end(), random_);
    DeviceAttentionArgs args =
        Args({{0, length, 0, 0}}, heads, {kv_heads, head_dim, kBlockTokens, KvType::kBf16});
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
    std::printf("prefill %6d x %3d %8.1f us  %6.1f TFLOP/s\n", length, head_dim, ms * 1e3,
                operations / ms / 1e9);
  }

  void MeasureGemms() {
    std::printf("gemm of %s\n", numerics());
    for (int32_t rows : {1, 16, 64, 128, 512, 2048, 8192}) MeasureGemm(rows, 4096, 4096);
    for (int32_t rows : {1, 16, 64, 2048, 8192}) MeasureGemm(rows, 28672, 4096);
  }

  void MeasureGemm(int32_t rows, int32_t n, int32_t k) {
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
    std::printf("gemm %4d x %5d x %4d %8.1f us  %6.1f TFLOP/s  %3.0f %% of copy; ", rows, n, k,
                ms * 1e3, 2.0 * rows * n * k / ms / 1e9, 100 * bytes / ms / copy_bytes_per_ms_);
    // What a search for tiles would gain over the choice by shape.
    DeviceGemmTile fastest;
    double least_ms = 0;
    for (args.tile = 0;; ++args.tile) {
      const DeviceGemmTile tile = device_->ops().gemm_tile(args.type, args.tile);
      if (tile.shared_bytes == 0) break;
      const double tile_ms = Time(enqueue);
      if (fastest.shared_bytes > 0 && tile_ms >= least_ms) continue;
      fastest = tile;
      least_ms = tile_ms;
    }
    std::printf("fastest tile %d x %d x %d: %8.1f us\n", fastest.rows, fastest.n, fastest.k,
                least_ms * 1e3);
  }

  // Rounding x to int8 or e4m3 counts as part of the product where it is. Scales keep what they
  // are: any number serves for a time.
  void MeasureQuantised(DeviceWeightType type, int32_t rows, int32_t n, int32_t k) {
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
    std::printf("gemm %s %4d x %5d x %4d %8.1f us  %6.1f TFLOP/s  %3.0f %% of copy\n",
                DeviceWeightTypeName(type), rows, n, k, ms * 1e3, 2.0 * rows * n * k / ms / 1e9,
                100 * bytes / ms / copy_bytes_per_ms_);
  }

  std::mt19937_64 random_{20240613};
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceStream> stream_;
  const std::unique_ptr<DeviceEvent> begin_, end_;
  double copy_bytes_per_ms_ = 1;
  DeviceBuffer narrow_, wide_, merges_, counts_, records_;
};

}  // namespace
}  // namespace tandem::kernels

// run_all.sh reads it: the program loaded, and there is no GPU. A program that cannot load ends
// otherwise.
constexpr int kNoGpu = 77;

int main(int argc, char** argv) {
  std::printf("%s\n", tandem::kernels::DescribeCuda().c_str());
  if (tandem::kernels::CountCudaDevices() == 0) return kNoGpu;
  if (argc > 1 && std::strcmp(argv[1], "--describe") == 0) return 0;
  const std::string own = [] {
    tandem::kernels::Bench bench(tandem::kernels::DeviceKernels::kOwn);
    bench.Run();
    return std::string(bench.numerics());
  }();
  tandem::kernels::Bench portable(tandem::kernels::DeviceKernels::kPortable);
  if (own != portable.numerics()) portable.RunPortable();
  return 0;
}
