#include "tests/gpu/kernel_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_checksum.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_rms_norm.h"
#include "kernels/api/device_rope_kv.h"
#include "kernels/api/device_sampling.h"
#include "kernels/api/device_timing.h"

namespace tandem::kernels {
namespace {

constexpr int32_t kHeadDim = 128;
constexpr int32_t kBlockTokens = 32;
constexpr int32_t kVocabulary = 128256;
// Of sequences that are decoded.
constexpr int32_t kDecodeHeads = 16, kDecodeKvHeads = 2;

// Ends the program: a benchmark without its device has nothing to say.
template <typename T>
T Get(absl::StatusOr<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(result);
}

const char* NameOf(KvType type) {
  return type == KvType::kBf16 ? "bf16" : type == KvType::kInt8 ? "int8" : "fp8";
}

// Logits as a model's: a few tokens stand out.
std::vector<float> RandomLogits(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Every 250th token occurred.
std::vector<TokenCount> Counts() {
  std::vector<TokenCount> counts;
  for (int32_t token = 0; token < kVocabulary; token += 250) counts.push_back({token, 1, 1});
  return counts;
}

}  // namespace

std::string NameOf(const Decode& decode) {
  return absl::StrCat("decode ", NameOf(decode.type), " ", decode.batch, " x ", decode.length,
                      decode.split ? "" : " unsplit");
}
std::string NameOf(const Merge& merge) {
  return absl::StrCat("merge ", merge.batch, " x ", merge.length);
}
std::string NameOf(const Prefill& prefill) {
  return absl::StrCat("prefill ", prefill.length, " x ", prefill.head_dim);
}
std::string NameOf(const Sample& sample) {
  return absl::StrCat("sample ", sample.rows, sample.filters ? " filtered" : " greedy");
}
std::string NameOf(const Norm& norm) { return absl::StrCat("norm ", norm.rows, " x 4096"); }
std::string NameOf(const Rope& rope) { return absl::StrCat("rope ", rope.rows, " x 48 heads"); }
std::string NameOf(const ChecksumCase& checksum) {
  return absl::StrCat("checksum ", checksum.count, " x ", checksum.kib, " KiB");
}
std::string NameOf(const BenchProduct& product) {
  return absl::StrCat("gemm ", DeviceWeightTypeName(product.type), " ", product.rows, " x ",
                      product.n, " x ", product.k);
}

Bench::Bench(DeviceKernels kernels, std::string prefix, Results& results)
    : device_(Get(OpenCudaDevice(0, kernels))),
      stream_(Get(device_->NewStream())),
      cublaslt_(CublasLt::Open(*device_)),
      prefix_(std::move(prefix)),
      results_(results) {}

const char* Bench::numerics() const { return device_->ops().numerics; }

DeviceBuffer Bench::Allocate(size_t bytes) {
  return Get(device_->Allocate(DeviceBuffer::Kind::kDevice, bytes));
}

template <typename T>
DeviceBuffer Bench::Upload(const std::vector<T>& values) {
  DeviceBuffer buffer = Allocate(std::max<size_t>(1, values.size()) * sizeof(T));
  stream_->CopyIn(buffer.data(), values.data(), values.size() * sizeof(T));
  Require();
  return buffer;
}

DeviceBuffer Bench::RandomBf16(size_t count) {
  return Get(NewTimingValues(*device_, *stream_, count, static_cast<uint32_t>(random_())));
}

void Bench::Require() {
  const absl::Status status = stream_->Synchronize();
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

double Bench::Time(absl::FunctionRef<void(int)> enqueue) {
  return Get(TimeInGraph(*device_, *stream_, {}, enqueue));
}

void Bench::Report(Results::Row row) {
  row.name = prefix_ + row.name;
  results_.Add(row, copy_bytes_per_ms_);
}

void Bench::MeasureCopy() {
  const size_t bytes = size_t{4} << 30;
  const DeviceBuffer from = RandomBf16(bytes / 2), to = Allocate(bytes);
  const auto copy = [&](int) { stream_->CopyWithin(to.data(), from.data(), bytes); };
  const double ms = Get(TimeOnStream(*device_, *stream_, /*runs=*/5, copy));
  copy_bytes_per_ms_ = 2.0 * static_cast<double>(bytes) / ms;
  Report({"copy", ms, 2.0 * static_cast<double>(bytes), 0, "read and written"});
}

Bench::Sequences Bench::DecodeSequences(int32_t batch, int32_t length) {
  const int32_t blocks = length / kBlockTokens;
  Sequences sequences;
  for (int32_t i = 0; i < batch; ++i) {
    sequences.list.push_back({i, 1, length - 1, i * blocks});
    for (int32_t b = 0; b < blocks; ++b) sequences.tables.push_back(i * blocks + b);
  }
  std::shuffle(sequences.tables.begin(), sequences.tables.end(), random_);
  return sequences;
}

DeviceAttentionArgs Bench::Args(const std::vector<AttentionSequence>& sequences, int32_t heads,
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

void Bench::Measure(const Decode& decode) {
  const auto& [batch, length, type, split] = decode;
  const Sequences sequences = DecodeSequences(batch, length);
  DeviceAttentionArgs args =
      Args(sequences.list, kDecodeHeads, {kDecodeKvHeads, kHeadDim, kBlockTokens, type}, split);
  const DeviceBuffer tables = Upload(sequences.tables);
  const size_t kv_bytes =
      sequences.tables.size() * static_cast<size_t>(args.layer.block_stride_bytes);
  // Measure on several caches alternately, which together exceed the L2 by far.
  std::vector<DeviceBuffer> caches;
  for (int i = 0; i < 6; ++i) caches.push_back(RandomBf16(kv_bytes / 2));
  const size_t q_size = static_cast<size_t>(batch * kDecodeHeads * kHeadDim);
  const DeviceBuffer q = RandomBf16(q_size), out = Allocate(q_size * 2);
  args.q = q.as<Bf16Bits>();
  args.tables = tables.as<int32_t>();
  args.out = out.as<Bf16Bits>();
  const double ms = Time([&](int i) {
    args.layer.base = caches[static_cast<size_t>(i) % caches.size()].data();
    device_->ops().attention(args, *stream_);
  });
  Report({NameOf(decode), ms, static_cast<double>(kv_bytes), 0, ""});
}

void Bench::Measure(const Merge& merge) {
  const auto& [batch, length] = merge;
  const Sequences sequences = DecodeSequences(batch, length);
  DeviceAttentionArgs args = Args(sequences.list, kDecodeHeads,
                                  {kDecodeKvHeads, kHeadDim, kBlockTokens, KvType::kBf16}, true);
  // Records of ones: any numbers serve for a time.
  const size_t records = static_cast<size_t>(batch) * ((length + 255) / 256) * kDecodeHeads;
  records_ = Upload(std::vector<float>(records * (kHeadDim + 2), 1.0f));
  args.records = records_.as<float>();
  args.launch.narrow_items = args.launch.wide_items = 0;
  counts_ = Upload(std::vector<AttentionCounts>{args.launch});
  args.counts = counts_.as<AttentionCounts>();
  const size_t q_size = static_cast<size_t>(batch * kDecodeHeads * kHeadDim);
  const DeviceBuffer q = RandomBf16(q_size), out = Allocate(q_size * 2);
  const DeviceBuffer tables = Upload(sequences.tables);
  const DeviceBuffer cache =
      Allocate(sequences.tables.size() * static_cast<size_t>(args.layer.block_stride_bytes));
  args.layer.base = cache.data();
  args.q = q.as<Bf16Bits>();
  args.tables = tables.as<int32_t>();
  args.out = out.as<Bf16Bits>();
  const double ms = Time([&](int) { device_->ops().attention(args, *stream_); });
  Report({NameOf(merge), ms, 0, 0, absl::StrCat(args.launch.merges, " merges")});
}

void Bench::Measure(const Norm& norm) {
  constexpr int32_t kSize = 4096;
  const size_t size = static_cast<size_t>(norm.rows) * kSize;
  std::vector<DeviceBuffer> x;
  for (int i = 0; i < 4; ++i) x.push_back(RandomBf16(size * 2));
  const DeviceBuffer weight = RandomBf16(size_t{kSize} * 2), y = Allocate(size * sizeof(Bf16Bits));
  DeviceRmsNormArgs args;
  args.weight = weight.as<float>();
  args.rows = norm.rows;
  args.size = kSize;
  args.y = y.as<Bf16Bits>();
  const double ms = Time([&](int i) {
    args.x = x[static_cast<size_t>(i) % x.size()].as<float>();
    device_->ops().rms_norm(args, *stream_);
  });
  Report({NameOf(norm), ms, static_cast<double>(size * 6), 0, ""});
}

void Bench::Measure(const Rope& rope) {
  constexpr int32_t kHeads = 32, kKvHeads = 8, kAllHeads = kHeads + 2 * kKvHeads;
  const size_t rows = static_cast<size_t>(rope.rows);
  std::vector<int32_t> positions(rows);
  std::vector<int64_t> slots(rows);
  for (size_t i = 0; i < rows; ++i) {
    positions[i] = static_cast<int32_t>(i);
    slots[i] = static_cast<int64_t>(i);
  }
  const DeviceBuffer dpositions = Upload(positions), dslots = Upload(slots);
  const DeviceBuffer angles = RandomBf16(rows * kHeadDim * 2);
  std::vector<DeviceBuffer> qkv;
  for (int i = 0; i < 4; ++i) qkv.push_back(RandomBf16(rows * kAllHeads * kHeadDim * 2));
  DeviceRopeKvArgs args;
  args.rows = rope.rows;
  args.num_heads = kHeads;
  args.positions = dpositions.as<int32_t>();
  args.cos = args.sin = angles.as<float>();
  args.slots = dslots.as<int64_t>();
  args.layer.shape = {kKvHeads, kHeadDim, kBlockTokens, KvType::kBf16};
  args.layer.block_stride_bytes = static_cast<int64_t>(KvBlockBytes(args.layer.shape));
  const size_t blocks = (rows + kBlockTokens - 1) / kBlockTokens;
  const DeviceBuffer cache = Allocate(blocks * static_cast<size_t>(args.layer.block_stride_bytes));
  const DeviceBuffer q = Allocate(rows * kHeads * kHeadDim * sizeof(Bf16Bits));
  args.layer.base = cache.data();
  args.q = q.as<Bf16Bits>();
  const double ms = Time([&](int i) {
    args.qkv = qkv[static_cast<size_t>(i) % qkv.size()].as<float>();
    device_->ops().rope_kv(args, *stream_);
  });
  Report({NameOf(rope), ms, static_cast<double>(rows * kAllHeads * kHeadDim * 6), 0, ""});
}

void Bench::Measure(const ChecksumCase& checksum) {
  const auto& [count, kib] = checksum;
  const int64_t bytes = int64_t{kib} << 10;
  std::vector<DeviceBuffer> data;
  for (int i = 0; i < 16; ++i) data.push_back(RandomBf16(static_cast<size_t>(bytes * count / 2)));
  const DeviceBuffer checksums = Allocate(static_cast<size_t>(count) * sizeof(uint64_t));
  const double ms = Time([&](int i) {
    const DeviceChecksumArgs args = {data[static_cast<size_t>(i) % data.size()].data(), bytes,
                                     bytes, count, checksums.as<uint64_t>()};
    device_->ops().checksum(args, *stream_);
  });
  Report({NameOf(checksum), ms, static_cast<double>(bytes * count), 0, ""});
}

void Bench::Measure(const Prefill& prefill) {
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

void Bench::Measure(const Sample& sample) {
  const auto& [rows, filters] = sample;
  const size_t size = static_cast<size_t>(rows) * kVocabulary;
  const DeviceBuffer logits = Upload(RandomLogits(size, random_));
  const DeviceBuffer work = Allocate(size * sizeof(float));
  const std::vector<TokenCount> occurred = Counts();
  const DeviceBuffer counts = Upload(occurred);
  const int32_t num_counts = static_cast<int32_t>(occurred.size());
  std::vector<DeviceSampleRow> parameters(static_cast<size_t>(rows));
  for (size_t i = 0; i < parameters.size(); ++i) {
    DeviceSampleRow& row = parameters[i];
    row.temperature = 0;
    row.seed = i;
    if (!filters) continue;
    row.temperature = 0.8f;
    row.top_k = 50;
    row.top_p = 0.9f;
    row.min_p = 0.02f;
    row.repetition_penalty = 1.1f;
    row.counts = counts.as<TokenCount>();
    row.num_counts = num_counts;
  }
  const DeviceBuffer dparameters = Upload(parameters);
  const DeviceBuffer results = Allocate(parameters.size() * sizeof(SamplingResult));
  DeviceSampleArgs args;
  args.logits = logits.as<float>();
  args.vocab_size = kVocabulary;
  args.rows = rows;
  args.parameters = dparameters.as<DeviceSampleRow>();
  args.work = work.as<float>();
  args.results = results.as<SamplingResult>();
  const double ms = Time([&](int) { device_->ops().sample(args, *stream_); });
  Report({NameOf(sample), ms, static_cast<double>(size * sizeof(float)), 0, ""});
}

absl::Status Bench::CheckLibrary(DeviceGemmArgs args) {
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
    return absl::InternalError(absl::StrCat("y[0, ", i, "] is ", theirs[i], ", expected ", ours[i],
                                            " within ", tolerance));
  }
  return absl::OkStatus();
}

void Bench::MeasureBf16(const BenchProduct& product) {
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

void Bench::MeasureQuantised(const BenchProduct& product) {
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

}  // namespace tandem::kernels
