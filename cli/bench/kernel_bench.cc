#include "cli/bench/kernel_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/cpu/cpu_choices.h"
#include "common/engine/cpu/weight_format.h"
#include "common/runtime/processors.h"

namespace tandem::engine {
namespace {

using model::TensorRole;

// Bytes of equal matrices that calls use alternately, so that no cache keeps weights from one call
// to the next.
constexpr size_t kColdBytes = size_t{128} << 20;
constexpr int64_t kContext = 2048;
constexpr int64_t kPromptRows = 512;
constexpr int32_t kLentPartitions = 5;   // of 256 tokens
constexpr uint16_t kSmallHalf = 0x0c00;  // 2^-12 in fp16
constexpr int32_t kSmallVocab = 49152, kLargeVocab = 262144;

// A cheap sequence of numbers in [-1, 1).
class Noise {
 public:
  float Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state_ >> 32)) * 0x1p-31f;
  }
  void Fill(float* values, int64_t count, float scale) {
    for (int64_t i = 0; i < count; ++i) values[i] = scale * Next();
  }
  AlignedBuffer Floats(int64_t count, float scale = 1.0f) {
    AlignedBuffer buffer(static_cast<size_t>(count) * sizeof(float));
    Fill(buffer.floats(), count, scale);
    return buffer;
  }

 private:
  uint64_t state_ = 1;
};

class KernelBench {
 public:
  struct Setup {
    const model::Checkpoint& checkpoint;
    const model::ModelConfig& config;
    const kernels::Backend& backend;
    WeightFormat weights;
    kernels::KvShape kv;
    absl::Duration time_each;
  };
  KernelBench(const Setup& setup, ComputePool& pool)
      : setup_(setup), pool_(pool), roofs_(MeasureRoofs(setup.backend, pool)) {}

  void RunAll();
  const MachineRoofs& roofs() const { return roofs_; }
  std::vector<KernelResult> TakeResults() { return std::move(results_); }

 private:
  // The least operations and bytes of one call.
  struct Cost {
    double flops = 0, bytes = 0;
    bool cached = false;  // the bytes stay in the cores' caches from call to call
    bool one_thread = false;
    bool int8 = false;
  };
  void Measure(const std::string& operation, const std::string& shape, const Cost& cost,
               absl::FunctionRef<void()> call);
  // The product of the matrix that the tensors of `roles` make together, in the types that the
  // engine keeps it in.
  void Gemm(const std::string& name, const std::vector<TensorRole>& roles, int64_t n, int64_t k);
  std::set<kernels::WeightType> TypesOf(const std::vector<TensorRole>& roles) const;
  void GemmOfType(const std::string& name, const kernels::MatrixShape& shape);
  void Pack(const kernels::MatrixShape& shape, void* packed);
  void GemmRows(const std::string& name, const kernels::MatrixShape& shape,
                const std::vector<const void*>& copies, int64_t rows);
  void Attention(int64_t sequences, int64_t rows_each, int64_t context);
  void Partials(int32_t partitions);
  void Rows();
  void Sample(int32_t vocab);

  const Setup setup_;
  ComputePool& pool_;
  const MachineRoofs roofs_;
  Noise noise_;
  std::vector<KernelResult> results_;
};

void KernelBench::Measure(const std::string& operation, const std::string& shape, const Cost& cost,
                          absl::FunctionRef<void()> call) {
  constexpr size_t kCallsMin = 5;
  call();
  std::vector<double> times;
  double total = 0;
  while (times.size() < kCallsMin || total < absl::ToDoubleSeconds(setup_.time_each)) {
    times.push_back(SecondsOf(call));
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  const double share = cost.one_thread ? 1.0 / pool_.num_threads() : 1.0;
  const double bandwidth =
      share * (cost.cached ? roofs_.cache_bytes_per_second : roofs_.bytes_per_second);
  const double rate = share * (cost.int8 ? roofs_.int8_flops : roofs_.flops);
  const double arithmetic_s = rate > 0 ? cost.flops / rate : 0;
  const double bytes_s = cost.bytes / bandwidth;
  KernelResult& result = results_.emplace_back();
  result.operation = operation;
  result.shape = shape;
  result.micros = 1e6 * times[times.size() / 2];
  result.roof_micros = 1e6 * std::max(arithmetic_s, bytes_s);
  result.flops = cost.flops;
  result.bytes = cost.bytes;
  result.bound = arithmetic_s > bytes_s ? "FLOPs" : (cost.cached ? "cache" : "memory");
}

void KernelBench::GemmRows(const std::string& name, const kernels::MatrixShape& shape,
                           const std::vector<const void*>& copies, int64_t rows) {
  const kernels::Backend& backend = setup_.backend;
  AlignedBuffer x = noise_.Floats(rows * shape.k);
  AlignedBuffer y(static_cast<size_t>(rows * shape.n) * sizeof(float));
  AlignedBuffer scratch(kernels::GemmScratchBytes(rows, shape.k));
  kernels::GemmArgs args;
  args.x = x.floats();
  args.x_stride = shape.k;
  args.rows = rows;
  args.y = y.floats();
  args.y_stride = shape.n;
  args.scratch = scratch.data();
  const double weight_bytes = static_cast<double>(backend.packed_bytes(shape));
  const double bytes = weight_bytes + 4.0 * static_cast<double>(rows * (shape.n + shape.k));
  size_t next = 0;
  Measure(
      absl::StrCat("gemm ", name), absl::StrCat(rows, " x ", shape.n, " x ", shape.k),
      {.flops = 2.0 * static_cast<double>(rows * shape.n * shape.k),
       .bytes = bytes,
       .int8 = shape.type != kernels::WeightType::kF32 && shape.type != kernels::WeightType::kBf16},
      [&] {
        args.w = {shape, copies[next++ % copies.size()]};
        backend.gemm(args, pool_.parallel());
      });
  results_.back().weights = WeightTypeName(shape.type);
}

std::set<kernels::WeightType> KernelBench::TypesOf(const std::vector<TensorRole>& roles) const {
  const bool output = roles.size() == 1 &&
                      (roles[0] == TensorRole::kTokenEmbedding || roles[0] == TensorRole::kOutput);
  std::set<kernels::WeightType> types;
  for (int layer = output ? -1 : 0; layer < (output ? 0 : setup_.config.num_layers); ++layer) {
    std::vector<const model::StoredTensor*> tensors;
    for (const TensorRole role : roles) {
      tensors.push_back(setup_.checkpoint.Find(role, layer));
      TANDEM_CHECK(tensors.back() != nullptr, model::TensorRoleName(role), " of layer ", layer);
    }
    types.insert(PackedType(setup_.weights, setup_.backend, tensors, output));
  }
  return types;
}

void KernelBench::Gemm(const std::string& name, const std::vector<TensorRole>& roles, int64_t n,
                       int64_t k) {
  for (const kernels::WeightType type : TypesOf(roles)) GemmOfType(name, {n, k, type});
}

void KernelBench::Pack(const kernels::MatrixShape& shape, void* packed) {
  kernels::PackRowsArgs args = {.shape = shape, .num_rows = shape.n, .packed = packed};
  if (shape.type != kernels::WeightType::kQ4K) {
    const AlignedBuffer rows = noise_.Floats(shape.n * shape.k, 0.1f);
    args.rows = rows.floats();
    setup_.backend.pack_rows(args);
    return;
  }
  std::vector<kernels::Q4KBlock> blocks(
      static_cast<size_t>(shape.n * shape.k / kernels::kQ4KBlockSize));
  for (kernels::Q4KBlock& block : blocks) {
    block.scale = block.min = kSmallHalf;
    for (int g = 0; g < 8; ++g) {
      block.scales[g] = block.mins[g] = static_cast<uint8_t>(40 + g);
      for (uint8_t& quants : block.quants[g])
        quants = static_cast<uint8_t>(128 + 127 * noise_.Next());
    }
  }
  args.blocks = blocks.data();
  setup_.backend.pack_rows(args);
}

void KernelBench::GemmOfType(const std::string& name, const kernels::MatrixShape& shape) {
  const size_t bytes = (setup_.backend.packed_bytes(shape) + 63) / 64 * 64;
  const size_t count = kColdBytes / bytes + 1;
  AlignedBuffer all(bytes * count);
  Pack(shape, all.data());
  std::vector<const void*> copies;
  for (size_t i = 0; i < count; ++i) {
    char* copy = static_cast<char*>(all.data()) + i * bytes;
    if (i > 0) std::memcpy(copy, all.data(), bytes);
    copies.push_back(copy);
  }
  const bool output = shape.n == setup_.config.vocab_size;
  for (int64_t rows_now : {int64_t{1}, int64_t{8}, int64_t{32}, kPromptRows}) {
    if (!output || rows_now < kPromptRows) GemmRows(name, shape, copies, rows_now);
  }
}

void KernelBench::Attention(int64_t sequences, int64_t rows_each, int64_t context) {
  const model::ModelConfig& config = setup_.config;
  const kernels::KvShape& kv = setup_.kv;
  const int64_t end = context + rows_each, rows = sequences * rows_each;
  const int64_t blocks_each = (end + kv.block_tokens - 1) / kv.block_tokens;
  const int64_t stride = static_cast<int64_t>((kernels::KvBlockBytes(kv) + 63) / 64 * 64);
  AlignedBuffer cache(static_cast<size_t>(sequences * blocks_each * stride));
  std::memset(cache.data(), 0x3c, cache.bytes());
  std::vector<std::vector<int32_t>> tables;
  std::vector<kernels::SequenceRows> list;
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t>& table = tables.emplace_back();
    for (int64_t b = 0; b < blocks_each; ++b) {
      table.push_back(static_cast<int32_t>(s * blocks_each + b));
    }
    list.push_back({table.data(), static_cast<int32_t>(s * rows_each),
                    static_cast<int32_t>(rows_each), static_cast<int32_t>(context)});
  }
  const int64_t width = int64_t{config.num_heads} * config.head_dim;
  const AlignedBuffer q = noise_.Floats(rows * width);
  AlignedBuffer out(static_cast<size_t>(rows * width) * sizeof(float));
  AlignedBuffer scratch(
      kernels::AttentionScratchBytes({config.num_heads, kv, static_cast<int32_t>(rows),
                                      static_cast<int32_t>(end), pool_.num_threads()}));
  kernels::AttentionArgs args;
  args.q = q.floats();
  args.q_stride = args.out_stride = width;
  args.num_heads = config.num_heads;
  args.scale = config.attention_scale;
  args.layer = {kv, cache.data(), stride};
  args.sequences = list.data();
  args.num_sequences = static_cast<int32_t>(sequences);
  args.out = out.floats();
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  const double pairs = static_cast<double>(rows) *
                       (static_cast<double>(context) + 0.5 * static_cast<double>(rows_each + 1));
  const double kv_bytes = static_cast<double>(sequences * end) *
                          static_cast<double>(kernels::KvBlockBytes(kv)) / kv.block_tokens;
  Measure("attention", absl::StrCat(sequences, " x ", rows_each, " rows after ", context),
          {.flops = 4 * pairs * static_cast<double>(width),
           .bytes = kv_bytes + 8.0 * static_cast<double>(rows * width)},
          [&] { setup_.backend.attention(args, pool_.parallel()); });
}

// One generated row of a borrowing sequence over what one creditor holds, a layer after another.
void KernelBench::Partials(int32_t partitions) {
  const model::ModelConfig& config = setup_.config;
  const kernels::KvShape& kv = setup_.kv;
  const int32_t tokens = partitions * kernels::kPartitionTokens;
  const int32_t blocks = tokens / kv.block_tokens;
  const int64_t stride = static_cast<int64_t>((kernels::KvBlockBytes(kv) + 63) / 64 * 64);
  const size_t layer_bytes = static_cast<size_t>(blocks * stride);
  const size_t layers = kColdBytes / layer_bytes + 1;
  AlignedBuffer cache(layers * layer_bytes);
  std::memset(cache.data(), 0x3c, cache.bytes());
  std::vector<int32_t> table(static_cast<size_t>(blocks));
  std::iota(table.begin(), table.end(), 0);
  const int64_t width = int64_t{config.num_heads} * config.head_dim;
  const AlignedBuffer q = noise_.Floats(width);
  kernels::PartialsSequence sequence;
  sequence.block_table = table.data();
  sequence.num_rows = 1;
  sequence.first_position = tokens;
  sequence.span = {0, partitions};
  const int64_t pieces = kernels::NumPieces(sequence.span);
  AlignedBuffer records(
      static_cast<size_t>(pieces * kernels::PieceBytes(1, config.num_heads, config.head_dim)));
  sequence.records = records.floats();
  AlignedBuffer scratch(
      kernels::PartialsScratchBytes({config.num_heads, kv, 1, pool_.num_threads()}));
  kernels::AttentionPartialsArgs args;
  args.q = q.floats();
  args.q_stride = width;
  args.num_heads = config.num_heads;
  args.scale = config.attention_scale;
  args.sequences = &sequence;
  args.num_sequences = 1;
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  size_t layer = 0;
  Measure("attention, partials", absl::StrCat("1 row over ", tokens),
          {.flops = 4.0 * tokens * static_cast<double>(width),
           .bytes = static_cast<double>(layer_bytes)},
          [&] {
            char* base = static_cast<char*>(cache.data());
            args.layer = {kv, base + layer++ % layers * layer_bytes, stride};
            setup_.backend.attention_partials(args, pool_.parallel());
          });
}

void KernelBench::Rows() {
  const int64_t hidden = setup_.config.hidden_size, ffn = setup_.config.ffn_size;
  AlignedBuffer x = noise_.Floats(kPromptRows * std::max(hidden, 2 * ffn));
  AlignedBuffer y(x.bytes());
  const AlignedBuffer weight = noise_.Floats(hidden);
  kernels::RmsNormArgs norm;
  norm.x = x.floats();
  norm.x_stride = norm.y_stride = norm.size = hidden;
  norm.rows = kPromptRows;
  norm.weight = weight.floats();
  norm.y = y.floats();
  const double rows = static_cast<double>(kPromptRows);
  Measure("rms_norm", absl::StrCat(kPromptRows, " x ", hidden),
          {.bytes = 8.0 * rows * static_cast<double>(hidden), .cached = true},
          [&] { setup_.backend.rms_norm(norm, pool_.parallel()); });
  kernels::GatedActivationArgs gated;
  gated.gate = x.floats();
  gated.up = x.floats() + ffn;
  gated.gate_stride = gated.up_stride = 2 * ffn;
  gated.rows = kPromptRows;
  gated.size = gated.y_stride = ffn;
  gated.y = y.floats();
  Measure("gated_activation", absl::StrCat(kPromptRows, " x ", ffn),
          {.bytes = 12.0 * rows * static_cast<double>(ffn), .cached = true},
          [&] { setup_.backend.gated_activation(gated, pool_.parallel()); });
}

void KernelBench::Sample(int32_t vocab) {
  // Sums of four: the tails of a language model's logits, roughly.
  AlignedBuffer logits(static_cast<size_t>(vocab) * sizeof(float));
  for (int64_t i = 0; i < vocab; ++i) {
    logits.floats()[i] = 4 * (noise_.Next() + noise_.Next() + noise_.Next() + noise_.Next());
  }
  AlignedBuffer scratch(kernels::SamplingScratchBytes(vocab));
  std::vector<kernels::TokenCount> counts;
  for (int32_t i = 0; i < 1000; ++i) counts.push_back({i * (vocab / 1000), i % 2, i % 3});
  const std::vector<kernels::TokenBias> biases = {{5, 2.0f}, {77, -3.0f}, {vocab - 1, 1.0f}};
  std::vector<kernels::TokenLogprob> top(20);
  kernels::SamplingArgs args;
  args.logits = logits.floats();
  args.vocab_size = vocab;
  args.scratch = scratch.data();
  args.temperature = 0;
  const auto measure = [&](const char* what) {
    Measure("sample", absl::StrCat(vocab, " ", what),
            {.bytes = 4.0 * vocab, .cached = true, .one_thread = true}, [&] {
              ++args.position;
              setup_.backend.sample(args);
            });
  };
  measure("greedy");
  args.temperature = 0.8f;
  measure("temperature");
  args.top_p = 0.95f;
  measure("top-p");
  args.top_k = 50;
  args.min_p = 0.02f;
  args.repetition_penalty = 1.1f;
  args.presence_penalty = args.frequency_penalty = 0.2f;
  args.counts = counts.data();
  args.num_counts = static_cast<int32_t>(counts.size());
  args.biases = biases.data();
  args.num_biases = static_cast<int32_t>(biases.size());
  measure("all filters");
  args.want_logprob = true;
  args.top_logprobs = top.data();
  args.num_top_logprobs = static_cast<int32_t>(top.size());
  measure("all filters, 20 logprobs");
}

void KernelBench::RunAll() {
  const model::ModelConfig& config = setup_.config;
  const int64_t q = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv = int64_t{config.num_kv_heads} * config.head_dim;
  Gemm("qkv", {TensorRole::kQ, TensorRole::kK, TensorRole::kV}, q + 2 * kv, config.hidden_size);
  Gemm("o", {TensorRole::kO}, config.hidden_size, q);
  Gemm("gate_up", {TensorRole::kGate, TensorRole::kUp}, 2 * int64_t{config.ffn_size},
       config.hidden_size);
  Gemm("down", {TensorRole::kDown}, config.hidden_size, config.ffn_size);
  Gemm("output", {config.tied_embeddings ? TensorRole::kTokenEmbedding : TensorRole::kOutput},
       config.vocab_size, config.hidden_size);
  Attention(1, 1, kContext);
  Attention(32, 1, kContext);
  Attention(1, kPromptRows, 0);
  Attention(1, kPromptRows, kContext - kPromptRows);
  Partials(kLentPartitions);
  Rows();
  for (int32_t vocab : {kSmallVocab, kLargeVocab}) Sample(vocab);
}

}  // namespace

absl::StatusOr<KernelReport> BenchKernels(const model::Checkpoint& checkpoint,
                                          const CpuEngineOptions& options,
                                          absl::Duration time_each) {
  ASSIGN_OR_RETURN(const CpuChoices choices, ChooseForCpu(checkpoint.config(), options));
  ComputePool pool(options.threads == 0 ? DefaultComputeThreads(ReadProcessors())
                                        : options.threads);
  KernelBench bench(
      {checkpoint, checkpoint.config(), *choices.backend, choices.weights, choices.kv, time_each},
      pool);
  bench.RunAll();
  KernelReport report;
  report.numerics = choices.numerics;
  report.weights = options.weights;
  report.kv_type = options.kv_type;
  report.roofs = bench.roofs();
  report.results = bench.TakeResults();
  return report;
}

}  // namespace tandem::engine
