// Writes a small random Llama checkpoint with fp8 matrices into a folder of its own, and computes
// its weights with a definition of e4m3 that is independent of the code under test.
#pragma once

#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::testing {

// The value of an e4m3 code: 2^(e - 7) · (1 + f / 8), evenly spaced below e = 1; 0x7f and 0xff are
// not numbers.
inline double E4m3Oracle(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(1.0 + fraction / 8.0, exponent - 7);
  return code < 128 ? magnitude : -magnitude;
}

inline std::string BytesOfF32(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}
// Rounds towards zero; `values` gets what is left.
inline std::string BytesOfBf16(std::vector<float>& values) {
  std::string bytes;
  for (float& value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bits &= 0xffff0000u;
    std::memcpy(&value, &bits, sizeof(bits));
    bytes.append(reinterpret_cast<const char*>(&bits) + 2, 2);
  }
  return bytes;
}

// How a checkpoint stores the scales of its matrices.
struct Fp8Layout {
  std::string name;
  std::string quantization_config;                                 // JSON
  std::string suffix = "_scale";                                   // after the weight's name
  std::string dtype = "F32";                                       // or BF16
  enum { kScalar, kOne, kColumn, kRow, kBlocks } shape = kScalar;  // [], [1], [n, 1], [n], blocks
  int64_t block_rows = 128, block_columns = 128;
  bool with_activation_scales = false;
};

struct Fp8Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  int64_t scale_rows = 0, scale_columns = 0;  // that share one

  double At(int64_t row, int64_t column) const {
    const int64_t in_row = (columns + scale_columns - 1) / scale_columns;
    const size_t scale = static_cast<size_t>(row / scale_rows * in_row + column / scale_columns);
    return E4m3Oracle(codes[static_cast<size_t>(row * columns + column)]) *
           static_cast<double>(scales[scale]);
  }
};

class Fp8Folder {
 public:
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  // Of one layer; 128 x 128 blocks do not fit evenly.
  static constexpr int64_t kHidden = 192, kFfn = 208, kVocabulary = 40, kKvRows = 96;

  Fp8Folder(const Fp8Layout& layout, uint64_t seed) : random_(seed) {
    std::string pattern = std::filesystem::temp_directory_path().string() + "/tandem_fp8_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
    config = nlohmann::json::parse(R"({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 192, "intermediate_size": 208,
        "num_hidden_layers": 1, "num_attention_heads": 12, "num_key_value_heads": 6,
        "vocab_size": 40, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false, "eos_token_id": 2})");
    if (!layout.quantization_config.empty()) {
      config["quantization_config"] = nlohmann::json::parse(layout.quantization_config);
    }
    AddBf16("model.embed_tokens.weight", {kVocabulary, kHidden});
    AddBf16("lm_head.weight", {kVocabulary, kHidden});
    AddBf16("model.norm.weight", {kHidden});
    AddBf16("model.layers.0.input_layernorm.weight", {kHidden});
    AddBf16("model.layers.0.post_attention_layernorm.weight", {kHidden});
    AddMatrix(layout, "self_attn.q_proj", kHidden, kHidden);
    AddMatrix(layout, "self_attn.k_proj", kKvRows, kHidden);
    AddMatrix(layout, "self_attn.v_proj", kKvRows, kHidden);
    AddMatrix(layout, "self_attn.o_proj", kHidden, kHidden);
    AddMatrix(layout, "mlp.gate_proj", kFfn, kHidden);
    AddMatrix(layout, "mlp.up_proj", kFfn, kHidden);
    AddMatrix(layout, "mlp.down_proj", kHidden, kFfn);
  }
  Fp8Folder(const Fp8Folder&) = delete;
  Fp8Folder& operator=(const Fp8Folder&) = delete;
  ~Fp8Folder() { std::filesystem::remove_all(path_); }

  // Writes what the members say now and returns the folder.
  std::string Write() const {
    nlohmann::json header = nlohmann::json::object();
    std::string data;
    for (const auto& [name, entry] : entries) {
      header[name] = {{"dtype", entry.dtype},
                      {"shape", entry.shape},
                      {"data_offsets", {data.size(), data.size() + entry.bytes.size()}}};
      data += entry.bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    WriteFile("model.safetensors",
              std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text + data);
    WriteFile("config.json", config.dump());
    return path_;
  }
  void WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

  static std::string NameOf(const std::string& module) {
    return "model.layers.0." + module + ".weight";
  }

  nlohmann::json config;
  std::map<std::string, Entry> entries;       // by name in the file
  std::map<std::string, Fp8Matrix> matrices;  // by module, "mlp.up_proj"

 private:
  void AddBf16(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t dimension : shape) count *= dimension;
    std::vector<float> values(static_cast<size_t>(count));
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f, 0.3f);
    for (float& value : values) value = normal(random_);
    entries[name] = {"BF16", shape, BytesOfBf16(values)};
  }

  void AddMatrix(const Fp8Layout& layout, const std::string& module, int64_t rows,
                 int64_t columns) {
    Fp8Matrix matrix{rows, columns, {}, {}, rows, columns};
    std::uniform_int_distribution<int> any(0, 255);
    while (static_cast<int64_t>(matrix.codes.size()) < rows * columns) {
      const auto code = static_cast<uint8_t>(any(random_));
      if ((code & 0x7f) != 0x7f) matrix.codes.push_back(code);
    }
    std::vector<int64_t> shape;
    if (layout.shape == Fp8Layout::kOne) shape = {1};
    if (layout.shape == Fp8Layout::kColumn) shape = {rows, 1};
    if (layout.shape == Fp8Layout::kRow) shape = {rows};
    if (layout.shape == Fp8Layout::kColumn || layout.shape == Fp8Layout::kRow) {
      matrix.scale_rows = 1;
    }
    if (layout.shape == Fp8Layout::kBlocks) {
      matrix.scale_rows = layout.block_rows;
      matrix.scale_columns = layout.block_columns;
      shape = {(rows - 1) / layout.block_rows + 1, (columns - 1) / layout.block_columns + 1};
    }
    int64_t count = 1;
    for (int64_t dimension : shape) count *= dimension;
    // Codes are some hundreds at most: weights of about 0.1.
    std::uniform_real_distribution<float> exponent(-12.0f, -9.0f);
    for (int64_t i = 0; i < count; ++i) matrix.scales.push_back(std::exp2(exponent(random_)));
    const std::string name = NameOf(module);
    entries[name] = {
        "F8_E4M3", {rows, columns}, std::string(matrix.codes.begin(), matrix.codes.end())};
    const std::string scales =
        layout.dtype == "F32" ? BytesOfF32(matrix.scales) : BytesOfBf16(matrix.scales);
    entries[name + layout.suffix] = {layout.dtype, shape, scales};
    if (layout.with_activation_scales) {
      const std::string stem = name.substr(0, name.rfind('.'));
      entries[stem + ".input_scale"] = {"F32", {1}, BytesOfF32({0.5f})};
      if (module == "self_attn.k_proj") entries[stem + ".k_scale"] = {"F32", {}, BytesOfF32({2})};
      if (module == "self_attn.v_proj") entries[stem + ".v_scale"] = {"F32", {}, BytesOfF32({2})};
    }
    matrices[module] = std::move(matrix);
  }

  std::mt19937_64 random_;
  std::string path_;
};

// One layout for each way in which published checkpoints store fp8.
inline std::vector<Fp8Layout> Fp8Layouts() {
  const std::string group =
      R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
          "kv_cache_scheme": null, "quantization_status": "compressed",
          "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": {
            "num_bits": 8, "type": "float", "strategy": "token", "dynamic": true}, "weights": {
            "num_bits": 8, "type": "float", "symmetric": true, "dynamic": false, )";
  const std::string end = "}}}}";
  std::vector<Fp8Layout> layouts(8);
  layouts[0] = {"CompressedTensorsChannel", group + R"("strategy": "channel")" + end};
  layouts[0].dtype = "BF16";
  layouts[0].shape = Fp8Layout::kColumn;
  layouts[1] = {"CompressedTensorsTensor", group + R"("strategy": "tensor")" + end};
  layouts[1].shape = Fp8Layout::kOne;
  layouts[1].with_activation_scales = true;
  layouts[2] = {"CompressedTensorsBlock",
                group + R"("strategy": "block", "block_structure": [128, 128])" + end};
  layouts[2].dtype = "BF16";
  layouts[2].shape = Fp8Layout::kBlocks;
  layouts[3] = {"Fp8Tensor", R"({"quant_method": "fp8", "activation_scheme": "static",
                                 "ignored_layers": ["lm_head"]})"};
  layouts[3].with_activation_scales = true;
  layouts[4] = {"Fp8Block",
                R"({"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                                "weight_block_size": [128, 128]})"};
  layouts[4].suffix = "_scale_inv";
  layouts[4].shape = Fp8Layout::kBlocks;
  layouts[5] = {"FbgemmFp8", R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0,
                                 "modules_to_not_convert": ["lm_head"]})"};
  layouts[5].shape = Fp8Layout::kColumn;
  layouts[6] = {"ModelOptTensor", R"({"quant_method": "modelopt", "quant_algo": "FP8",
                                      "ignore": ["lm_head"], "kv_cache_quant_algo": "FP8"})"};
  layouts[6].with_activation_scales = true;
  layouts[7] = {"ModelOptChannel",
                R"({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"})"};
  layouts[7].shape = Fp8Layout::kRow;
  return layouts;
}

}  // namespace tandem::testing
