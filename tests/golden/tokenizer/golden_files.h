// Reads the files that make_corpus.py writes, and the tokenizer arrays of a GGUF file.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/checkpoint.h"

namespace tandem::model {

inline std::string GoldenPath(absl::string_view name) {
  return absl::StrCat(TANDEM_SOURCE_DIR, "/tests/golden/tokenizer/", name);
}

inline std::string ReadGzip(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  TANDEM_CHECK(file != nullptr, "cannot open ", path);
  std::string data;
  char buffer[1 << 16];
  int count = 0;
  while ((count = gzread(file, buffer, sizeof(buffer))) > 0) data.append(buffer, count);
  TANDEM_CHECK(count == 0, "cannot read ", path);
  gzclose(file);
  return data;
}

inline std::vector<std::string> ReadCorpus() {
  const std::string data = ReadGzip(GoldenPath("corpus.bin.gz"));
  std::vector<std::string> lines;
  for (size_t i = 0; i < data.size();) {
    uint32_t length = 0;
    std::memcpy(&length, data.data() + i, sizeof(length));
    lines.push_back(data.substr(i + sizeof(length), length));
    i += sizeof(length) + length;
  }
  return lines;
}

// Where models are cached; a file there, or nullopt when it is absent.
inline std::optional<std::string> FindModel(absl::string_view file) {
  const char* folder = std::getenv("TANDEM_MODELS");
  const char* home = std::getenv("HOME");
  const std::string path = absl::StrCat(
      folder != nullptr ? folder : absl::StrCat(home, "/.cache/tandem/models"), "/", file);
  return std::ifstream(path).good() ? std::optional<std::string>(path) : std::nullopt;
}

// Reads tokenizer.ggml.* of a little-endian GGUF v3 file that is known to be sound.
class GgufMetadata {
 public:
  explicit GgufMetadata(const std::string& path) : in_(path, std::ios::binary) {}

  TokenizerSource ReadTokenizer() {
    TokenizerSource source;
    in_.seekg(16);  // magic, version, tensor count
    const auto count = Read<uint64_t>();
    for (uint64_t i = 0; i < count; ++i) {
      const std::string key = ReadString();
      ReadValue(key, Read<uint32_t>(), &source);
    }
    return source;
  }

 private:
  template <typename T>
  T Read() {
    T value{};
    in_.read(reinterpret_cast<char*>(&value), sizeof(value));
    TANDEM_CHECK(in_.good(), "GGUF file ends early");
    return value;
  }

  std::string ReadString() {
    std::string text(Read<uint64_t>(), '\0');
    in_.read(text.data(), static_cast<std::streamsize>(text.size()));
    return text;
  }

  // GGUF's value types by number.
  static constexpr uint32_t kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8,
                            kArray = 9;
  static constexpr int kScalarBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

  void ReadValue(const std::string& key, uint32_t type, TokenizerSource* source) {
    if (type == kArray) {
      const auto element = Read<uint32_t>();
      ReadArray(key, element, Read<uint64_t>(), source);
    } else if (type == kString) {
      const std::string text = ReadString();
      if (key == "tokenizer.ggml.model") source->gguf_model = text;
      if (key == "tokenizer.ggml.pre") source->gguf_pre = text;
    } else if (type == kBool) {
      const bool value = Read<uint8_t>() != 0;
      if (key == "tokenizer.ggml.add_bos_token") source->add_bos = value;
      if (key == "tokenizer.ggml.add_eos_token") source->add_eos = value;
      if (key == "tokenizer.ggml.add_space_prefix") source->add_space_prefix = value;
    } else if (type == kUint32) {
      const auto value = Read<int32_t>();
      if (key == "tokenizer.ggml.bos_token_id") source->bos_token_id = value;
      if (key == "tokenizer.ggml.eos_token_id") source->eos_token_id = value;
      if (key == "tokenizer.ggml.unknown_token_id") source->unknown_token_id = value;
      if (key == "tokenizer.ggml.padding_token_id") source->padding_token_id = value;
    } else {
      in_.seekg(kScalarBytes[type], std::ios::cur);
    }
  }

  void ReadArray(const std::string& key, uint32_t element, uint64_t count,
                 TokenizerSource* source) {
    for (uint64_t i = 0; i < count; ++i) {
      if (element == kString) {
        std::string text = ReadString();
        if (key == "tokenizer.ggml.tokens") source->tokens.push_back(std::move(text));
        if (key == "tokenizer.ggml.merges") source->merges.push_back(std::move(text));
      } else if (element == kFloat32) {
        const auto value = Read<float>();
        if (key == "tokenizer.ggml.scores") source->scores.push_back(value);
      } else if (element == kInt32) {
        const auto value = Read<int32_t>();
        if (key == "tokenizer.ggml.token_type") source->token_types.push_back(value);
      } else {
        in_.seekg(kScalarBytes[element], std::ios::cur);
      }
    }
  }

  std::ifstream in_;
};

}  // namespace tandem::model
