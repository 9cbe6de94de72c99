// A file's bytes, mapped read-only into memory. Thread safety: const methods from any thread.
// Owner: the Checkpoint whose tensors point into it; the destructor unmaps.
// Invariant: bytes() is valid and constant while the object lives, provided that no process
// truncates or rewrites the file in place. To replace a checkpoint, rename a new file over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tandem::model {

class MappedFile {
 public:
  // Errors: kNotFound when there is no such file, kInvalidArgument for something other than a
  // regular file or an empty one, kUnavailable when the system cannot open or map it.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  // A file that exists in memory only.
  static std::unique_ptr<MappedFile> FromMemory(std::string path, std::string contents);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  absl::Span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // When the file was last written to, since 1970; nullopt for one in memory.
  std::optional<int64_t> modified_ns() const { return modified_ns_; }

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::string contents_;                // FromMemory only
  void* mapping_ = nullptr;             // Open only
  std::optional<int64_t> modified_ns_;  // Open only
  absl::Span<const std::byte> bytes_;
};

// The whole text of a small file (configuration, tokenizer). Errors as MappedFile::Open, and
// kInvalidArgument when it is larger than `bytes_max`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max);

}  // namespace tandem::model
