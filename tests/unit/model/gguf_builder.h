// Writes GGUF bytes for tests, right ones and deliberately wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/model/gguf.h"

namespace tandem::testing {

class GgufBuilder {
 public:
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  uint64_t extra_values = 0;   // announced in the header but not there
  uint64_t extra_tensors = 0;  // likewise

  template <typename T>
  static void Append(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void AppendString(std::string& out, const std::string& text) {
    Append<uint64_t>(out, text.size());
    out += text;
  }

  // A value whose payload is given as bytes. A key added before is replaced.
  GgufBuilder& Raw(const std::string& key, uint32_t type, std::string payload) {
    for (Entry& entry : values_) {
      if (entry.key == key) {
        entry = {key, type, std::move(payload)};
        return *this;
      }
    }
    values_.push_back({key, type, std::move(payload)});
    return *this;
  }
  // Adds without replacing, to make duplicates.
  GgufBuilder& Duplicate(const std::string& key) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].key == key) {
        values_.push_back(values_[i]);
        break;
      }
    }
    return *this;
  }
  template <typename T>
  GgufBuilder& Scalar(const std::string& key, model::GgufValueType type, T value) {
    std::string payload;
    Append(payload, value);
    return Raw(key, static_cast<uint32_t>(type), payload);
  }
  GgufBuilder& Uint32(const std::string& key, uint32_t value) {
    return Scalar(key, model::GgufValueType::kUint32, value);
  }
  GgufBuilder& Float(const std::string& key, float value) {
    return Scalar(key, model::GgufValueType::kFloat32, value);
  }
  GgufBuilder& String(const std::string& key, const std::string& value) {
    std::string payload;
    AppendString(payload, value);
    return Raw(key, static_cast<uint32_t>(model::GgufValueType::kString), payload);
  }
  GgufBuilder& Strings(const std::string& key, const std::vector<std::string>& values) {
    std::string payload;
    Append(payload, model::GgufValueType::kString);
    Append<uint64_t>(payload, values.size());
    for (const std::string& value : values) AppendString(payload, value);
    return Raw(key, static_cast<uint32_t>(model::GgufValueType::kArray), payload);
  }
  template <typename T>
  GgufBuilder& Array(const std::string& key, model::GgufValueType type,
                     const std::vector<T>& values) {
    std::string payload;
    Append(payload, type);
    Append<uint64_t>(payload, values.size());
    for (const T value : values) Append(payload, value);
    return Raw(key, static_cast<uint32_t>(model::GgufValueType::kArray), payload);
  }
  GgufBuilder& Remove(const std::string& key) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].key == key) values_.erase(values_.begin() + static_cast<ptrdiff_t>(i));
    }
    return *this;
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> dimensions;  // fastest first
    uint32_t type = 0;                 // ggml's number
    std::string data;
    int64_t offset = -1;  // in the data section; -1 puts it after the one before
  };
  // An F32 tensor of values that rise by 1/64, so that every element differs from its neighbours.
  GgufBuilder& F32(const std::string& name, const std::vector<uint64_t>& dimensions) {
    uint64_t elements = 1;
    for (const uint64_t dimension : dimensions) elements *= dimension;
    std::string data;
    for (uint64_t i = 0; i < elements; ++i) Append(data, static_cast<float>(i) / 64);
    tensors.push_back({name, dimensions, 0, data, -1});
    return *this;
  }
  Tensor& Find(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    tensors.push_back({name, {1}, 0, std::string(4, '\0'), -1});
    return tensors.back();
  }
  GgufBuilder& RemoveTensor(const std::string& name) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name == name) tensors.erase(tensors.begin() + static_cast<ptrdiff_t>(i));
    }
    return *this;
  }

  std::string Build() const {
    constexpr size_t kAlignment = 32;
    std::string out;
    Append(out, magic);
    Append(out, version);
    Append<uint64_t>(out, tensors.size() + extra_tensors);
    Append<uint64_t>(out, values_.size() + extra_values);
    for (const Entry& entry : values_) {
      AppendString(out, entry.key);
      Append(out, entry.type);
      out += entry.payload;
    }
    std::string data;
    for (const Tensor& tensor : tensors) {
      AppendString(out, tensor.name);
      Append(out, static_cast<uint32_t>(tensor.dimensions.size()));
      for (const uint64_t dimension : tensor.dimensions) Append(out, dimension);
      Append(out, tensor.type);
      data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment);
      Append<uint64_t>(out, tensor.offset < 0 ? data.size() : static_cast<uint64_t>(tensor.offset));
      data += tensor.data;
    }
    out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
    return out + data;
  }

  std::vector<Tensor> tensors;

 private:
  struct Entry {
    std::string key;
    uint32_t type = 0;
    std::string payload;
  };
  std::vector<Entry> values_;
};

// A valid one-layer llama checkpoint: hidden 32, 2 heads of 16, 1 KV head, FFN 24, vocabulary 6.
inline GgufBuilder TinyLlama() {
  GgufBuilder b;
  b.String("general.architecture", "llama").String("general.name", "tiny");
  b.Uint32("llama.block_count", 1).Uint32("llama.context_length", 64);
  b.Uint32("llama.embedding_length", 32).Uint32("llama.feed_forward_length", 24);
  b.Uint32("llama.attention.head_count", 2).Uint32("llama.attention.head_count_kv", 1);
  b.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f).Float("llama.rope.freq_base", 10000.0f);
  b.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "smollm");
  b.Strings("tokenizer.ggml.tokens", {"<unk>", "<|im_end|>", "<eos>", "a", "b", "ab"});
  b.Array<int32_t>("tokenizer.ggml.token_type", model::GgufValueType::kInt32, {2, 3, 3, 1, 1, 1});
  b.Strings("tokenizer.ggml.merges", {"a b"}).Uint32("tokenizer.ggml.eos_token_id", 2);
  b.String("tokenizer.chat_template", "{{ messages }}");
  b.F32("token_embd.weight", {32, 6}).F32("output_norm.weight", {32});
  b.F32("blk.0.attn_norm.weight", {32}).F32("blk.0.attn_q.weight", {32, 32});
  b.F32("blk.0.attn_k.weight", {32, 16}).F32("blk.0.attn_v.weight", {32, 16});
  b.F32("blk.0.attn_output.weight", {32, 32}).F32("blk.0.ffn_norm.weight", {32});
  b.F32("blk.0.ffn_gate.weight", {32, 24}).F32("blk.0.ffn_up.weight", {32, 24});
  b.F32("blk.0.ffn_down.weight", {24, 32});
  return b;
}

}  // namespace tandem::testing
