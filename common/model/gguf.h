// Reads the structure of a GGUF file (versions 2 and 3, little-endian): metadata and tensor
// directory. Every length, count and offset is checked against the file's size before it is used,
// so hostile bytes give an error, never a crash or a large allocation.
// Thread safety: const methods from any thread.
// Owner: the loader, while it opens a checkpoint. Borrows the file's bytes, which must outlive it.
// Errors: kInvalidArgument naming the key or tensor, the offset in the file, and what was expected
// and found; kUnimplemented for versions, byte orders and tensor types that are not supported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/stored_tensor.h"

namespace tandem::model {

// Metadata value types, numbered as in the file.
enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

struct GgufTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> dimensions;  // 1 to 4, fastest first: [columns, rows, ...]
  uint64_t offset = 0;              // of its first byte in the file
  uint64_t size_bytes = 0;
};

class GgufFile {
 public:
  static absl::StatusOr<GgufFile> Parse(absl::Span<const std::byte> file);

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  bool Has(absl::string_view key) const { return values_.contains(key); }

  // Each returns nullopt when the key is absent and kInvalidArgument when its value has another
  // type. Any integer type is accepted where an integer is asked for, any number for a float.
  absl::StatusOr<std::optional<int64_t>> FindInteger(absl::string_view key) const;
  absl::StatusOr<std::optional<double>> FindFloat(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> FindBool(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> FindString(absl::string_view key) const;
  absl::StatusOr<std::optional<std::vector<std::string>>> FindStrings(absl::string_view key) const;
  absl::StatusOr<std::optional<std::vector<float>>> FindFloats(absl::string_view key) const;
  // Integers or booleans.
  absl::StatusOr<std::optional<std::vector<int64_t>>> FindIntegers(absl::string_view key) const;
  // Whether `key` holds an array.
  bool IsArray(absl::string_view key) const;

 private:
  struct Value {
    GgufValueType type = GgufValueType::kUint8;
    GgufValueType element_type = GgufValueType::kUint8;  // arrays
    uint64_t count = 0;                                  // arrays: elements; strings: bytes
    uint64_t offset = 0;                                 // of the payload in the file
  };
  class Reader;

  absl::Status ReadMetadata(Reader& reader, uint64_t count);
  absl::Status ReadTensors(Reader& reader, uint64_t count);
  absl::Status PlaceTensors(uint64_t directory_end);
  const Value* FindValue(absl::string_view key) const;

  absl::Span<const std::byte> file_;
  absl::flat_hash_map<std::string, Value> values_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace tandem::model
