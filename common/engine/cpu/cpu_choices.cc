#include "common/engine/cpu/cpu_choices.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/rope_table.h"

namespace tandem::engine {
namespace {

// More compute threads than any supported machine has cores.
constexpr int kThreadsMax = 1024;

// The classes this processor has, for messages: "avx512bf16, avx512, avx2, ref".
std::string AvailableClasses() {
  std::string names;
  for (const auto& [isa, name] : {std::pair(kernels::IsaClass::kAmx, "amx, "),
                                  std::pair(kernels::IsaClass::kAvx512Bf16, "avx512bf16, "),
                                  std::pair(kernels::IsaClass::kAvx512, "avx512, "),
                                  std::pair(kernels::IsaClass::kAvx2, "avx2, ")}) {
    if (kernels::FindBackend(isa) != nullptr) absl::StrAppend(&names, name);
  }
  return names + "ref";
}

absl::StatusOr<WeightFormat> ParseWeights(const std::string& name) {
  if (name == "auto") return WeightFormat::kAuto;
  if (name == "f32") return WeightFormat::kF32;
  if (name == "bf16") return WeightFormat::kBf16;
  if (name == "int8") return WeightFormat::kInt8;
  if (name == "int4") return WeightFormat::kInt4;
  if (name == "as-stored") return WeightFormat::kAsStored;
  if (name == "fp8" || name == "fp8a16") {
    return absl::InvalidArgumentError(
        absl::StrCat("weights is \"", name,
                     "\", which only --device cuda has, expected auto, bf16, f32, int8, int4 or "
                     "as-stored"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("weights is \"", name, "\", expected auto, bf16, f32, int8, int4 or as-stored"));
}

absl::StatusOr<const kernels::Backend*> SelectBackend(const CpuEngineOptions& options) {
  const std::string& name = options.isa;
  const bool portable = options.numerics == "portable" || options.weights == "f32";
  if (options.numerics != "auto" && options.numerics != "portable") {
    return absl::InvalidArgumentError(
        absl::StrCat("numerics is \"", options.numerics, "\", expected auto or portable"));
  }
  if (name == "auto") return &(portable ? kernels::BestPortableBackend() : kernels::BestBackend());
  kernels::IsaClass isa = kernels::IsaClass::kRef;
  if (!kernels::ParseIsaClass(name.c_str(), &isa)) {
    return absl::InvalidArgumentError(
        absl::StrCat("isa is \"", name, "\", expected auto, amx, avx512bf16, avx512, avx2 or ref"));
  }
  const kernels::Backend* backend = kernels::FindBackend(isa);
  if (backend == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("isa is \"", name, "\", but ", kernels::WhyMissing(isa),
                     ": this processor has only ", AvailableClasses()));
  }
  const absl::StatusOr<WeightFormat> weights = ParseWeights(options.weights);
  const bool exact = weights.ok() && HasExactProducts(*weights) && options.kv_type == "int8";
  if (options.numerics == "portable" && !(exact && isa != kernels::IsaClass::kRef) &&
      std::string(backend->numerics) != kernels::kPortableNumerics) {
    return absl::InvalidArgumentError(absl::StrCat("numerics is \"portable\", which isa \"", name,
                                                   "\" does not have: expected avx512 or avx2"));
  }
  return backend;
}

// The class with the fastest integer products, whatever its floating-point products are.
const kernels::Backend& WidestBackend() {
  for (const kernels::IsaClass isa : {kernels::IsaClass::kAmx, kernels::IsaClass::kAvx512Bf16}) {
    if (const kernels::Backend* backend = kernels::FindBackend(isa)) return *backend;
  }
  return kernels::BestPortableBackend();
}

absl::StatusOr<kernels::KvType> ParseKvType(const std::string& name) {
  if (name == "bf16") return kernels::KvType::kBf16;
  if (name == "f32") return kernels::KvType::kF32;
  if (name == "int8") return kernels::KvType::kInt8;
  if (name == "fp8") {
    return absl::InvalidArgumentError(
        "kv_type is \"fp8\" (--kv-type), which only --device cuda has: expected bf16, int8 or f32");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kv_type is \"", name, "\", expected bf16, int8 or f32"));
}

absl::Status CheckOptions(const model::ModelConfig& config, const CpuEngineOptions& options) {
  if (options.threads < 0 || options.threads > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, ", expected 0 to ", kThreadsMax));
  }
  const int block = options.block_tokens;
  if (block < 16 || block % 16 != 0 || kernels::kPartitionTokens % block != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_tokens is ", block, ", expected 16, 32, 64, 128 or 256"));
  }
  if (options.context_tokens < 0 || options.context_tokens > config.context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context_tokens is ", options.context_tokens, " (--context-tokens), expected at most ",
        config.context_tokens, ", the model's context, or 0 for it"));
  }
  RETURN_IF_ERROR(CheckRopeTables(
      config, options.context_tokens == 0 ? config.context_tokens : options.context_tokens));
  if (config.hidden_size % 2 != 0 || config.ffn_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's hidden size is ",
                                                   config.hidden_size, " and its ffn size ",
                                                   config.ffn_size, ", expected even numbers"));
  }
  if (config.head_dim % 16 != 0 || config.head_dim > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint's heads have ", config.head_dim,
                     " dimensions, expected a multiple of 16, at most 256"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CpuChoices> ChooseForCpu(const model::ModelConfig& config,
                                        const CpuEngineOptions& options) {
  RETURN_IF_ERROR(CheckOptions(config, options));
  CpuChoices choices;
  ASSIGN_OR_RETURN(choices.backend, SelectBackend(options));
  ASSIGN_OR_RETURN(choices.weights, ParseWeights(options.weights));
  choices.kv = {config.num_kv_heads, config.head_dim, options.block_tokens};
  ASSIGN_OR_RETURN(choices.kv.type, ParseKvType(options.kv_type));
  // With weights of four or eight bits and an int8 cache all classes compute the same bits, so take
  // the one with the widest instructions.
  const bool exact = HasExactProducts(choices.weights) && choices.kv.type == kernels::KvType::kInt8;
  if (exact && options.isa == "auto") choices.backend = &WidestBackend();
  choices.numerics = exact && choices.backend->isa != kernels::IsaClass::kRef
                         ? kernels::kPortableNumerics
                         : choices.backend->numerics;
  return choices;
}

}  // namespace tandem::engine
