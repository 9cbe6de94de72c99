// Reads the structure of a safetensors file: an 8-byte little-endian header size, a JSON header,
// and the tensors' bytes. Lengths and offsets are checked before use, so hostile bytes give an
// error. Thread safety: pure functions. The result points into `file`, which must outlive it.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/tensor_table.h"

namespace tandem::model {

// The tensors in the order of their data. Errors: kInvalidArgument naming the tensor, its offset,
// expected and actual size; kUnimplemented for an element type other than F32, F16,
// BF16 and F8_E4M3.
absl::StatusOr<std::vector<FileTensor>> ParseSafetensors(absl::Span<const std::byte> file);

// The files a sharded checkpoint's model.safetensors.index.json names, each once, and which file
// holds which tensor.
struct ShardIndex {
  std::vector<std::string> files;
  std::vector<std::pair<std::string, size_t>> tensors;  // name and index into files
};
// Errors: kInvalidArgument for text that is not an index or names a file outside its folder.
absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text);

}  // namespace tandem::model
