// The hashes by which servers name files. Thread safety: a pure function of the file.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct FileHashes {
  std::string sha256;
  std::string git_blob;  // SHA-1 over "blob SIZE\0" and the contents
};

// In hexadecimal. `go_on`: asked after each MiB; a large file takes minutes. Errors: kUnavailable
// when the file cannot be read; kCancelled when `go_on` said so.
absl::StatusOr<FileHashes> HashFile(const std::string& path, const std::function<bool()>& go_on);

}  // namespace tandem::cli
