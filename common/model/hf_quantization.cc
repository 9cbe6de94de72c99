#include "common/model/hf_quantization.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/dequantize.h"
#include "common/model/json_reading.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// Larger than any matrix, and so small that products of two stay far below 2^63.
constexpr int64_t kBlockMax = 1 << 24;
constexpr float kE4m3Max = 448.0f;

absl::Status Unsupported(absl::string_view key, absl::string_view found, absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat("quantization: key \"", key, "\" is ", found, "; ", what));
}

absl::Status SetBlock(int64_t rows, int64_t columns, Fp8Scheme& scheme) {
  if (rows < 1 || columns < 1 || rows > kBlockMax || columns > kBlockMax) {
    return absl::InvalidArgumentError(absl::StrCat("quantization: blocks of ", rows, " x ", columns,
                                                   ", expected 1 to ", kBlockMax,
                                                   " rows and columns"));
  }
  if (scheme.in_blocks() && (scheme.block_rows != rows || scheme.block_columns != columns)) {
    return absl::UnimplementedError(absl::StrCat("quantization: blocks of ", rows, " x ", columns,
                                                 " beside blocks of ", scheme.block_rows, " x ",
                                                 scheme.block_columns, "; one size is supported"));
  }
  scheme.block_rows = rows;
  scheme.block_columns = columns;
  return absl::OkStatus();
}

// [rows, columns], or "rowsxcolumns" as older files spell it.
absl::Status ReadBlock(absl::string_view key, const json& value, Fp8Scheme& scheme) {
  if (const std::string* text = value.get_ptr<const std::string*>()) {
    const std::vector<std::string> sizes = absl::StrSplit(*text, 'x');
    int64_t rows = 0, columns = 0;
    if (sizes.size() == 2 && absl::SimpleAtoi(sizes[0], &rows) &&
        absl::SimpleAtoi(sizes[1], &columns)) {
      return SetBlock(rows, columns, scheme);
    }
  } else if (value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
             value[1].is_number_unsigned()) {
    // A number beyond an int64 wraps to a negative one, which the check refuses.
    return SetBlock(value[0].get<int64_t>(), value[1].get<int64_t>(), scheme);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("quantization: key \"", key, "\" is not an array of two positive integers"));
}

// One group's weights in a compressed-tensors configuration.
absl::Status ReadGroupWeights(const JsonMembers& weights, Fp8Scheme& scheme) {
  ASSIGN_OR_RETURN(const auto bits, weights.Integer("num_bits"));
  ASSIGN_OR_RETURN(const auto type, weights.String("type"));
  if (bits.value_or(0) != 8 || type.value_or("int") != "float") {
    return Unsupported(
        "config_groups",
        absl::StrCat("of weights with ", bits.value_or(0), " bits of type ", type.value_or("int")),
        "8 bits of type float are supported");
  }
  ASSIGN_OR_RETURN(const auto symmetric, weights.Bool("symmetric"));
  if (!symmetric.value_or(true)) return Unsupported("symmetric", "false", "true is supported");
  ASSIGN_OR_RETURN(const auto strategy, weights.String("strategy"));
  const std::string kind = strategy.value_or("tensor");
  if (kind == "tensor") {
    scheme.per_tensor = true;
  } else if (kind == "channel") {
    scheme.per_channel = true;
  } else if (kind == "block") {
    const json* block = weights.Find("block_structure");
    if (block == nullptr) {
      return absl::InvalidArgumentError("quantization: key \"block_structure\" is missing");
    }
    return ReadBlock("block_structure", *block, scheme);
  } else {
    return Unsupported("strategy", absl::StrCat("\"", kind, "\""),
                       "tensor, channel and block are supported");
  }
  return absl::OkStatus();
}

absl::Status CheckFormat(const std::optional<std::string>& format) {
  if (format.value_or("float-quantized") == "float-quantized" || *format == "naive-quantized") {
    return absl::OkStatus();
  }
  return Unsupported("format", absl::StrCat("\"", *format, "\""),
                     "float-quantized and naive-quantized are supported");
}

absl::Status ReadCompressedTensors(const JsonMembers& members, Fp8Scheme& scheme) {
  ASSIGN_OR_RETURN(const auto format, members.String("format"));
  // Groups then have formats of their own.
  const bool mixed = format == "mixed-precision";
  if (!mixed) RETURN_IF_ERROR(CheckFormat(format));
  const json* sparsity = members.Find("sparsity_config");
  if (sparsity != nullptr && sparsity->is_object()) {
    ASSIGN_OR_RETURN(const auto kind, JsonMembers(*sparsity).String("format"));
    if (kind.value_or("dense") != "dense") {
      return Unsupported("sparsity_config", absl::StrCat("\"", *kind, "\""), "dense is supported");
    }
  }
  const json* transform = members.Find("transform_config");
  if (transform != nullptr && !transform->empty()) {
    return Unsupported("transform_config", "not empty", "no transforms are supported");
  }
  const json* groups = members.Find("config_groups");
  if (groups == nullptr || !groups->is_object()) {
    return absl::InvalidArgumentError("quantization: key \"config_groups\" is not an object");
  }
  for (const auto& [name, group] : groups->items()) {
    const json* weights = group.is_object() ? JsonMembers(group).Find("weights") : nullptr;
    if (!group.is_object() || (weights != nullptr && !weights->is_object())) {
      return absl::InvalidArgumentError(
          absl::StrCat("quantization: group \"", name, "\" does not describe weights"));
    }
    ASSIGN_OR_RETURN(const auto own_format, JsonMembers(group).String("format"));
    RETURN_IF_ERROR(CheckFormat(own_format));
    if (weights != nullptr) RETURN_IF_ERROR(ReadGroupWeights(JsonMembers(*weights), scheme));
  }
  return absl::OkStatus();
}

absl::Status ReadFp8(const JsonMembers& members, Fp8Scheme& scheme) {
  ASSIGN_OR_RETURN(const auto format, members.String("fmt"));
  if (format.value_or("e4m3") != "e4m3" && *format != "float8_e4m3fn") {
    return Unsupported("fmt", absl::StrCat("\"", *format, "\""), "e4m3 is supported");
  }
  const json* block = members.Find("weight_block_size");
  if (block != nullptr) return ReadBlock("weight_block_size", *block, scheme);
  scheme.per_tensor = scheme.per_channel = true;
  return absl::OkStatus();
}

absl::Status ReadModelOpt(const JsonMembers& members, Fp8Scheme& scheme) {
  ASSIGN_OR_RETURN(const auto algorithm, members.String("quant_algo"));
  if (algorithm == "FP8") {
    scheme.per_tensor = true;
  } else if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    scheme.per_channel = true;
  } else {
    return Unsupported("quant_algo", absl::StrCat("\"", algorithm.value_or(""), "\""),
                       "FP8 and FP8_PER_CHANNEL_PER_TOKEN are supported");
  }
  return absl::OkStatus();
}

// Where the name of a weight's scale ends differently from the weight's.
constexpr absl::string_view kScaleSuffixes[] = {".weight_scale", ".weight_scale_inv"};
// Scales of activations and caches.
constexpr absl::string_view kUnusedSuffixes[] = {
    ".input_scale", ".input_scale_ub", ".activation_scale", ".output_scale", ".k_scale",
    ".v_scale",     ".q_scale",        ".kv_scale",         ".prob_scale",   ".prob_output_scale",
};

// The weight that a scale belongs to; empty for a tensor that is not a weight's scale.
std::string WeightOf(absl::string_view name) {
  for (const absl::string_view suffix : kScaleSuffixes) {
    absl::string_view stem = name;
    if (absl::ConsumeSuffix(&stem, suffix)) return absl::StrCat(stem, ".weight");
  }
  return "";
}

bool IsUnused(absl::string_view name) {
  return std::any_of(std::begin(kUnusedSuffixes), std::end(kUnusedSuffixes),
                     [&](absl::string_view suffix) { return absl::EndsWith(name, suffix); });
}

// A scale's tensor beside its weight's.
struct Pair {
  const Fp8Scheme& scheme;
  const FileTensor& scale;
  const FileTensor& weight;

  int64_t rows() const { return weight.shape[0]; }
  int64_t columns() const { return weight.shape[1]; }
  // What the scheme allows for, in words.
  std::string Expected() const;
  // How many rows and columns share a scale; empty values. Errors: kInvalidArgument.
  absl::StatusOr<TensorScales> Shape() const;
};

std::vector<int64_t> BlocksOf(const Fp8Scheme& scheme, const FileTensor& weight) {
  return {(weight.shape[0] + scheme.block_rows - 1) / scheme.block_rows,
          (weight.shape[1] + scheme.block_columns - 1) / scheme.block_columns};
}

std::string Pair::Expected() const {
  std::vector<std::string> shapes;
  if (scheme.per_tensor) shapes.push_back("[] or [1] for the tensor");
  if (scheme.per_channel) {
    shapes.push_back(absl::StrCat("[", rows(), ", 1] or [", rows(), "] for its rows"));
  }
  if (scheme.in_blocks()) {
    shapes.push_back(absl::StrCat(ShapeText(BlocksOf(scheme, weight)), " for blocks of ",
                                  scheme.block_rows, " x ", scheme.block_columns));
  }
  return shapes.empty() ? "no fp8 weights" : absl::StrJoin(shapes, " or ");
}

absl::StatusOr<TensorScales> Pair::Shape() const {
  TensorScales scales;
  const std::vector<int64_t>& shape = scale.shape;
  const bool single = std::all_of(shape.begin(), shape.end(), [](int64_t d) { return d == 1; });
  const bool for_rows = !shape.empty() && shape.size() <= 2 && shape[0] == rows() &&
                        (shape.size() == 1 || shape[1] == 1);
  if (scheme.per_tensor && single) {
    scales.rows = rows();
    scales.columns = columns();
  } else if (scheme.per_channel && for_rows) {
    scales.rows = 1;
    scales.columns = columns();
  } else if (scheme.in_blocks() && shape == BlocksOf(scheme, weight)) {
    scales.rows = scheme.block_rows;
    scales.columns = scheme.block_columns;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", scale.name, ", the scale of ", weight.name, " ", ShapeText(weight.shape),
        ", has shape ", ShapeText(shape), "; method ", scheme.method, " expects ", Expected()));
  }
  return scales;
}

absl::StatusOr<TensorScales> ReadScales(const Pair& pair) {
  ASSIGN_OR_RETURN(TensorScales scales, pair.Shape());
  const FileTensor& file = pair.scale;
  if (file.type == TensorType::kF8E4M3) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", file.name, " is a scale of type ",
                                                   TensorTypeName(file.type),
                                                   ", expected F32, F16 or BF16"));
  }
  int64_t count = 1;
  for (const int64_t dimension : file.shape) count *= dimension;
  scales.values.resize(static_cast<size_t>(count));
  DequantizeRow(file.type, file.data, count, scales.values.data());
  for (int64_t i = 0; i < count; ++i) {
    const float value = scales.values[static_cast<size_t>(i)];
    if (value > 0 && std::isfinite(value * kE4m3Max)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", file.name, ": scale ", i, " of ", count, " is ", value,
                     ", expected a number above 0 whose product with 448 is finite"));
  }
  return scales;
}

// Finds every weight's scale. `by_weight` borrows from `tensors`.
absl::Status FindScales(const std::vector<FileTensor>& tensors,
                        absl::flat_hash_map<std::string, const FileTensor*>& by_weight) {
  absl::flat_hash_map<absl::string_view, const FileTensor*> by_name;
  for (const FileTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  for (const FileTensor& tensor : tensors) {
    const std::string weight = WeightOf(tensor.name);
    if (weight.empty()) continue;
    const auto at = by_name.find(weight);
    if (at == by_name.end() || at->second->type != TensorType::kF8E4M3) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name, " is the scale of ", weight,
          at == by_name.end() ? ", which is missing"
                              : absl::StrCat(", which is ", TensorTypeName(at->second->type)),
          "; expected F8_E4M3"));
    }
    const auto [other, is_new] = by_weight.emplace(weight, &tensor);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", weight, " has two scales, ",
                                                     other->second->name, " and ", tensor.name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(const std::optional<Fp8Scheme>& scheme, const FileTensor& weight) {
  if (!scheme.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", weight.name,
                     " is F8_E4M3, but neither \"quantization_config\" of config.json "
                     "nor hf_quant_config.json says how it is scaled"));
  }
  if (weight.shape.size() == 2 && absl::EndsWith(weight.name, ".weight")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", weight.name, " is F8_E4M3 of shape ",
                                                 ShapeText(weight.shape),
                                                 "; only matrices of weights may be"));
}

}  // namespace

absl::StatusOr<std::optional<Fp8Scheme>> ParseQuantization(const json& config) {
  const JsonMembers top(config);
  const json* found = top.Find("quantization_config");
  if (found == nullptr) found = top.Find("compression_config");
  if (found == nullptr) return std::optional<Fp8Scheme>();
  if (!found->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("key \"quantization_config\" is a ",
                                                   found->type_name(), ", expected an object"));
  }
  const JsonMembers members(*found);
  ASSIGN_OR_RETURN(const auto method, members.String("quant_method"));
  Fp8Scheme scheme;
  scheme.method = method.value_or("");
  if (method == "compressed-tensors") {
    RETURN_IF_ERROR(ReadCompressedTensors(members, scheme));
  } else if (method == "fp8") {
    RETURN_IF_ERROR(ReadFp8(members, scheme));
  } else if (method == "fbgemm_fp8") {
    scheme.per_channel = true;
  } else if (method == "modelopt") {
    RETURN_IF_ERROR(ReadModelOpt(members, scheme));
  } else {
    return absl::UnimplementedError(
        absl::StrCat("key \"quantization_config\": quant_method \"", scheme.method,
                     "\" is not supported; compressed-tensors, fp8, fbgemm_fp8 and modelopt are, "
                     "with weights in F8_E4M3"));
  }
  return std::optional<Fp8Scheme>(std::move(scheme));
}

absl::StatusOr<Fp8Scheme> ParseModelOptFile(const json& file) {
  const json* found = JsonMembers(file).Find("quantization");
  if (found == nullptr || !found->is_object()) {
    return absl::InvalidArgumentError("key \"quantization\" is not an object");
  }
  Fp8Scheme scheme;
  scheme.method = "modelopt";
  RETURN_IF_ERROR(ReadModelOpt(JsonMembers(*found), scheme));
  return scheme;
}

absl::Status AttachScales(const std::optional<Fp8Scheme>& scheme,
                          std::vector<FileTensor>& tensors) {
  absl::flat_hash_map<std::string, const FileTensor*> by_weight;
  if (scheme.has_value()) RETURN_IF_ERROR(FindScales(tensors, by_weight));
  for (FileTensor& weight : tensors) {
    if (weight.type != TensorType::kF8E4M3) continue;
    RETURN_IF_ERROR(CheckWeight(scheme, weight));
    const auto scale = by_weight.find(weight.name);
    if (scale == by_weight.end()) {
      const absl::string_view stem = absl::StripSuffix(weight.name, ".weight");
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", weight.name, " is F8_E4M3 without a scale: expected ", stem,
                       kScaleSuffixes[0], " or ", stem, kScaleSuffixes[1]));
    }
    ASSIGN_OR_RETURN(weight.scales, ReadScales({*scheme, *scale->second, weight}));
  }
  if (!scheme.has_value()) return absl::OkStatus();
  const auto is_scale = [](const FileTensor& tensor) {
    return !WeightOf(tensor.name).empty() || IsUnused(tensor.name);
  };
  tensors.erase(std::remove_if(tensors.begin(), tensors.end(), is_scale), tensors.end());
  return absl::OkStatus();
}

}  // namespace tandem::model
