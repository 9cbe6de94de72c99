// Reads the files that make_corpus.py writes, and finds the models in the cache.
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

}  // namespace tandem::model
