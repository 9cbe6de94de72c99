// The hashes by which servers name files. Thread safety: a pure function of the file.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct FileHashes {
  std::string sha256;
  std::string git_blob;  // SHA-1 over "blob SIZE\0" and the contents
};

// In hexadecimal. Errors: kUnavailable when the file cannot be read.
absl::StatusOr<FileHashes> HashFile(const std::string& path);

}  // namespace tandem::cli
