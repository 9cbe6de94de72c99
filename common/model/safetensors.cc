#include "common/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/dequantize.h"
#include "common/model/json_reading.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// The format's own bound on the header.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kDimensionsMax = 8;

// A tensor with its place in the data section.
struct Placed {
  FileTensor tensor;
  uint64_t begin = 0;
  uint64_t end = 0;
};

std::optional<TensorType> TypeOf(absl::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  if (dtype == "BF16") return TensorType::kBF16;
  if (dtype == "F8_E4M3") return TensorType::kF8E4M3;
  return std::nullopt;
}

// An array of non-negative integers.
absl::StatusOr<std::vector<uint64_t>> Unsigned(const JsonMembers& members, absl::string_view name,
                                               absl::string_view key) {
  const json* array = members.Find(key);
  std::vector<uint64_t> values;
  bool is_valid = array != nullptr && array->is_array() && array->size() <= kDimensionsMax;
  for (size_t i = 0; is_valid && i < array->size(); ++i) {
    is_valid = (*array)[i].is_number_unsigned();
    if (is_valid) values.push_back((*array)[i].get<uint64_t>());
  }
  if (is_valid) return values;
  return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": key \"", key,
                                                 "\" is not an array of up to ", kDimensionsMax,
                                                 " unsigned integers"));
}

absl::StatusOr<Placed> ReadEntry(const std::string& name, const json& entry,
                                 absl::Span<const std::byte> data, uint64_t data_begin) {
  if (!entry.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": entry is not an object"));
  }
  const JsonMembers members(entry);
  ASSIGN_OR_RETURN(const std::optional<std::string> dtype, members.String("dtype"));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> shape, Unsigned(members, name, "shape"));
  ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets, Unsigned(members, name, "data_offsets"));
  const std::optional<TensorType> type = TypeOf(dtype.value_or(""));
  if (!type.has_value()) {
    return absl::UnimplementedError(absl::StrCat("tensor ", name, ": dtype \"", dtype.value_or(""),
                                                 "\"; F32, F16, BF16 and F8_E4M3 are supported"));
  }
  Placed placed;
  placed.tensor.name = name;
  placed.tensor.type = *type;
  uint64_t bytes = static_cast<uint64_t>(LayoutOf(*type).block_bytes);
  for (const uint64_t dimension : shape) {
    if (dimension == 0 || dimension > (uint64_t{1} << 56) / bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, ": dimension ", dimension,
                       dimension == 0 ? ", expected at least 1" : ", too large for any file"));
    }
    bytes *= dimension;
    placed.tensor.shape.push_back(static_cast<int64_t>(dimension));
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncated or corrupt: tensor ", name, " needs ", bytes,
                     " bytes at data offsets ", entry["data_offsets"].dump(), ", the file holds ",
                     data.size(), " data bytes from offset ", data_begin));
  }
  if (offsets[1] - offsets[0] != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, " at offset ", data_begin + offsets[0], ": ", *dtype,
                     " of shape ", ShapeText(placed.tensor.shape), " takes ", bytes,
                     " bytes, the header gives it ", offsets[1] - offsets[0]));
  }
  placed.begin = offsets[0];
  placed.end = offsets[1];
  placed.tensor.data = data.data() + offsets[0];
  return placed;
}

}  // namespace

absl::StatusOr<std::vector<FileTensor>> ParseSafetensors(absl::Span<const std::byte> file) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("truncated: a safetensors file has at least 8 bytes, found ", file.size()));
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const uint64_t rest = file.size() - sizeof(header_bytes);
  if (header_bytes > kHeaderBytesMax || header_bytes > rest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "truncated or not a safetensors file: the header at offset 8 takes ", header_bytes,
        " bytes, ", rest, " are left and ", kHeaderBytesMax, " the most allowed"));
  }
  const absl::string_view header(reinterpret_cast<const char*>(file.data()) + 8,
                                 static_cast<size_t>(header_bytes));
  ASSIGN_OR_RETURN(const json entries, ParseJsonObject(header, "the safetensors header"));
  const uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  const absl::Span<const std::byte> data = file.subspan(static_cast<size_t>(data_begin));
  std::vector<Placed> placed;
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(Placed tensor, ReadEntry(name, entry, data, data_begin));
    placed.push_back(std::move(tensor));
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  for (size_t i = 1; i < placed.size(); ++i) {
    if (placed[i].begin < placed[i - 1].end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", placed[i].tensor.name, " at data offset ", placed[i].begin,
          " overlaps tensor ", placed[i - 1].tensor.name, ", which ends at ", placed[i - 1].end));
    }
  }
  std::vector<FileTensor> tensors;
  for (Placed& tensor : placed) tensors.push_back(std::move(tensor.tensor));
  return tensors;
}

absl::StatusOr<ShardIndex> ParseShardIndex(absl::string_view text) {
  ASSIGN_OR_RETURN(const json index, ParseJsonObject(text, "the shard index"));
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError("the shard index has no \"weight_map\" object");
  }
  ShardIndex shards;
  absl::flat_hash_map<std::string, size_t> known;
  for (const auto& [name, file] : map->items()) {
    const std::string* path = file.get_ptr<const std::string*>();
    if (path == nullptr || path->empty() || path->find('/') != std::string::npos ||
        path->find('\0') != std::string::npos || *path == "." || *path == "..") {
      return absl::InvalidArgumentError(
          absl::StrCat("the shard index gives tensor ", name, " no file name within its folder"));
    }
    const auto [at, is_new] = known.emplace(*path, shards.files.size());
    if (is_new) shards.files.push_back(*path);
    shards.tensors.emplace_back(name, at->second);
  }
  return shards;
}

}  // namespace tandem::model
