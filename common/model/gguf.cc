#include "common/model/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/dequantize.h"

namespace tandem::model {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
// Where tensor data starts and how it is padded, unless the file says otherwise.
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kAlignmentMax = 1 << 20;
constexpr uint32_t kGgufDimensionsMax = 4;
// Keys and tensor names of real files are below 128 bytes; the format allows 65535.
constexpr uint64_t kNameBytesMax = 65535;
constexpr int kArrayDepthMax = 4;
// The smallest metadata entry (empty key, one-byte value) and tensor entry (no dimension). They
// bound the counts in the header.
constexpr uint64_t kValueBytesMin = 8 + 4 + 1;
constexpr uint64_t kTensorBytesMin = 8 + 4 + 4 + 8;

// Bytes of a scalar in the file; 0 for strings and arrays.
uint64_t ScalarBytes(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

absl::string_view ValueTypeName(GgufValueType type) {
  static constexpr absl::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                 "int32",  "float32", "bool",   "string", "array",
                                                 "uint64", "int64",   "float64"};
  return kNames[static_cast<size_t>(type)];
}

template <typename T>
T LoadAt(absl::Span<const std::byte> file, uint64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

// The integer of a scalar at `offset`; nullopt when it is not an integer or beyond int64.
std::optional<int64_t> LoadInteger(absl::Span<const std::byte> file, GgufValueType type,
                                   uint64_t offset) {
  switch (type) {
    case GgufValueType::kUint8:
      return LoadAt<uint8_t>(file, offset);
    case GgufValueType::kInt8:
      return LoadAt<int8_t>(file, offset);
    case GgufValueType::kUint16:
      return LoadAt<uint16_t>(file, offset);
    case GgufValueType::kInt16:
      return LoadAt<int16_t>(file, offset);
    case GgufValueType::kUint32:
      return LoadAt<uint32_t>(file, offset);
    case GgufValueType::kInt32:
      return LoadAt<int32_t>(file, offset);
    case GgufValueType::kInt64:
      return LoadAt<int64_t>(file, offset);
    case GgufValueType::kUint64: {
      const uint64_t value = LoadAt<uint64_t>(file, offset);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> LoadFloat(absl::Span<const std::byte> file, GgufValueType type,
                                uint64_t offset) {
  if (type == GgufValueType::kFloat32) return LoadAt<float>(file, offset);
  if (type == GgufValueType::kFloat64) return LoadAt<double>(file, offset);
  if (const std::optional<int64_t> integer = LoadInteger(file, type, offset); integer.has_value()) {
    return static_cast<double>(*integer);
  }
  return std::nullopt;
}

}  // namespace

// A cursor that never passes the end of the file.
class GgufFile::Reader {
 public:
  explicit Reader(absl::Span<const std::byte> file) : file_(file) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return file_.size() - offset_; }

  // `what` names the item in the error, e.g. "key 3's length".
  absl::Status Need(uint64_t bytes, absl::string_view what) const {
    if (bytes <= remaining()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("truncated: ", what, " at offset ", offset_,
                                                   " needs ", bytes, " bytes, ", remaining(),
                                                   " are left of the file's ", file_.size()));
  }

  template <typename T>
  absl::Status Read(absl::string_view what, T* value) {
    RETURN_IF_ERROR(Need(sizeof(T), what));
    *value = LoadAt<T>(file_, offset_);
    offset_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadString(absl::string_view what, uint64_t bytes_max, absl::string_view* value) {
    uint64_t size = 0;
    RETURN_IF_ERROR(Read(what, &size));
    if (size > bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(what, " at offset ", offset_ - sizeof(size),
                                                     ": ", size, " bytes long, expected at most ",
                                                     bytes_max));
    }
    RETURN_IF_ERROR(Need(size, what));
    *value = absl::string_view(reinterpret_cast<const char*>(file_.data()) + offset_,
                               static_cast<size_t>(size));
    offset_ += size;
    return absl::OkStatus();
  }

  absl::Status ReadType(absl::string_view what, GgufValueType* type) {
    uint32_t number = 0;
    RETURN_IF_ERROR(Read(what, &number));
    if (number > static_cast<uint32_t>(GgufValueType::kFloat64)) {
      return absl::InvalidArgumentError(absl::StrCat(what, " at offset ", offset_ - sizeof(number),
                                                     ": value type ", number,
                                                     ", expected 0 to 12"));
    }
    *type = static_cast<GgufValueType>(number);
    return absl::OkStatus();
  }

  // Skips a value's payload; for a string or array, sets count and element type of `value`.
  absl::Status Skip(absl::string_view what, Value* value, int depth) {
    value->offset = offset_;
    if (const uint64_t bytes = ScalarBytes(value->type); bytes > 0) return Advance(what, bytes);
    if (value->type == GgufValueType::kString) {
      absl::string_view text;
      RETURN_IF_ERROR(ReadString(what, file_.size(), &text));
      value->offset = offset_ - text.size();
      value->count = text.size();
      return absl::OkStatus();
    }
    if (depth >= kArrayDepthMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " at offset ", offset_, ": arrays nested deeper than ", depth));
    }
    RETURN_IF_ERROR(ReadType(what, &value->element_type));
    RETURN_IF_ERROR(Read(what, &value->count));
    value->offset = offset_;
    if (const uint64_t bytes = ScalarBytes(value->element_type); bytes > 0) {
      if (value->count > remaining() / bytes) return TooManyElements(what, value->count);
      return Advance(what, value->count * bytes);
    }
    // A string takes at least 8 bytes, an array 12.
    if (value->count > remaining() / 8) return TooManyElements(what, value->count);
    for (uint64_t i = 0; i < value->count; ++i) {
      Value element;
      element.type = value->element_type;
      RETURN_IF_ERROR(Skip(what, &element, depth + 1));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Advance(absl::string_view what, uint64_t bytes) {
    RETURN_IF_ERROR(Need(bytes, what));
    offset_ += bytes;
    return absl::OkStatus();
  }
  absl::Status TooManyElements(absl::string_view what, uint64_t count) const {
    return absl::InvalidArgumentError(absl::StrCat("truncated: ", what, " at offset ", offset_,
                                                   " has ", count, " elements, more than the ",
                                                   remaining(), " bytes left can hold"));
  }

  absl::Span<const std::byte> file_;
  uint64_t offset_ = 0;
};

absl::StatusOr<GgufFile> GgufFile::Parse(absl::Span<const std::byte> bytes) {
  Reader reader(bytes);
  uint32_t magic = 0;
  uint32_t version = 0;
  RETURN_IF_ERROR(reader.Read("the magic number", &magic));
  if (magic != kMagic) {
    return absl::InvalidArgumentError("not a GGUF file: it does not begin with \"GGUF\"");
  }
  RETURN_IF_ERROR(reader.Read("the version", &version));
  if ((version & 0xffff) == 0 && version != 0) {
    return absl::UnimplementedError("a big-endian GGUF file; little-endian ones are supported");
  }
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        absl::StrCat("GGUF version ", version, "; versions 2 and 3 are supported"));
  }
  uint64_t tensor_count = 0;
  uint64_t value_count = 0;
  RETURN_IF_ERROR(reader.Read("the tensor count", &tensor_count));
  RETURN_IF_ERROR(reader.Read("the metadata count", &value_count));
  if (value_count > reader.remaining() / kValueBytesMin ||
      tensor_count > reader.remaining() / kTensorBytesMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "truncated or corrupt: the header announces ", value_count, " metadata values and ",
        tensor_count, " tensors, more than the ", reader.remaining(), " bytes left can hold"));
  }
  GgufFile file;
  file.file_ = bytes;
  RETURN_IF_ERROR(file.ReadMetadata(reader, value_count));
  RETURN_IF_ERROR(file.ReadTensors(reader, tensor_count));
  RETURN_IF_ERROR(file.PlaceTensors(reader.offset()));
  return file;
}

absl::Status GgufFile::ReadMetadata(Reader& reader, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    absl::string_view key;
    RETURN_IF_ERROR(reader.ReadString(absl::StrCat("metadata key ", i), kNameBytesMax, &key));
    const std::string what = absl::StrCat("metadata key ", key);
    Value value;
    RETURN_IF_ERROR(reader.ReadType(what, &value.type));
    RETURN_IF_ERROR(reader.Skip(what, &value, 0));
    if (!values_.emplace(std::string(key), value).second) {
      return absl::InvalidArgumentError(absl::StrCat(what, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ReadTensors(Reader& reader, uint64_t count) {
  tensors_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    absl::string_view name;
    RETURN_IF_ERROR(reader.ReadString(absl::StrCat("tensor ", i, "'s name"), kNameBytesMax, &name));
    const std::string what = absl::StrCat("tensor ", name);
    GgufTensor tensor;
    tensor.name = std::string(name);
    const uint64_t entry_offset = reader.offset();
    uint32_t num_dimensions = 0;
    RETURN_IF_ERROR(reader.Read(what, &num_dimensions));
    if (num_dimensions < 1 || num_dimensions > kGgufDimensionsMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, " at offset ", entry_offset, ": ", num_dimensions, " dimensions, expected 1 to 4"));
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < num_dimensions; ++d) {
      uint64_t dimension = 0;
      RETURN_IF_ERROR(reader.Read(what, &dimension));
      // An element takes at least half a byte, so a dimension beyond 2^56 cannot be real.
      if (dimension == 0 || dimension > (uint64_t{1} << 56) / elements) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, " at offset ", entry_offset, ": dimension ", d, " is ", dimension,
                         dimension == 0 ? ", expected at least 1" : ", too large for any file"));
      }
      elements *= dimension;
      tensor.dimensions.push_back(static_cast<int64_t>(dimension));
    }
    uint32_t ggml_type = 0;
    RETURN_IF_ERROR(reader.Read(what, &ggml_type));
    RETURN_IF_ERROR(reader.Read(what, &tensor.offset));
    const std::optional<TensorType> type = TensorTypeFromGgml(ggml_type);
    if (!type.has_value()) {
      return absl::UnimplementedError(absl::StrCat(what, " at offset ", entry_offset, ": type ",
                                                   ggml_type, " (", GgmlTypeName(ggml_type),
                                                   ") is not supported"));
    }
    tensor.type = *type;
    const TensorTypeLayout& layout = LayoutOf(*type);
    if (tensor.dimensions[0] % layout.block_elements != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": rows of ", tensor.dimensions[0], " elements, expected a multiple of ",
          layout.block_elements, " for type ", layout.name));
    }
    tensor.size_bytes = elements / static_cast<uint64_t>(layout.block_elements) *
                        static_cast<uint64_t>(layout.block_bytes);
    tensors_.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

// Turns offsets within the data section into offsets within the file and checks that every tensor
// lies inside it, aligned, and apart from the others.
absl::Status GgufFile::PlaceTensors(uint64_t directory_end) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> stated, FindInteger("general.alignment"));
  const uint64_t alignment =
      stated.has_value() ? static_cast<uint64_t>(*stated) : kDefaultAlignment;
  if (alignment == 0 || alignment > kAlignmentMax || (alignment & (alignment - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key general.alignment is ", alignment,
                                                   ", expected a power of two up to ",
                                                   kAlignmentMax));
  }
  const uint64_t data_begin = (directory_end + alignment - 1) / alignment * alignment;
  const uint64_t file_bytes = file_.size();
  std::vector<const GgufTensor*> by_offset;
  for (GgufTensor& tensor : tensors_) {
    if (tensor.offset % alignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": data offset ",
                                                     tensor.offset, " is not a multiple of ",
                                                     alignment));
    }
    const uint64_t room = file_bytes > data_begin ? file_bytes - data_begin : 0;
    if (tensor.offset > room || tensor.size_bytes > room - tensor.offset) {
      const uint64_t held = tensor.offset < room ? room - tensor.offset : 0;
      return absl::InvalidArgumentError(
          absl::StrCat("truncated or corrupt: tensor ", tensor.name, " needs ", tensor.size_bytes,
                       " bytes from data offset ", tensor.offset, " (data begins at ", data_begin,
                       "), the file of ", file_bytes, " bytes holds ", held, " of them"));
    }
    tensor.offset += data_begin;
    by_offset.push_back(&tensor);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return std::make_pair(a->offset, a->name) < std::make_pair(b->offset, b->name);
  });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& before = *by_offset[i - 1];
    const GgufTensor& after = *by_offset[i];
    if (before.offset + before.size_bytes > after.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", after.name, " at offset ", after.offset, " overlaps tensor ", before.name,
          ", which takes ", before.size_bytes, " bytes from ", before.offset));
    }
  }
  return absl::OkStatus();
}

const GgufFile::Value* GgufFile::FindValue(absl::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufFile::IsArray(absl::string_view key) const {
  const Value* value = FindValue(key);
  return value != nullptr && value->type == GgufValueType::kArray;
}

namespace {

absl::Status WrongType(absl::string_view key, absl::string_view expected, GgufValueType found) {
  return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " is of type ",
                                                 ValueTypeName(found), ", expected ", expected));
}

}  // namespace

absl::StatusOr<std::optional<int64_t>> GgufFile::FindInteger(absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<int64_t>();
  const std::optional<int64_t> integer = LoadInteger(file_, value->type, value->offset);
  if (!integer.has_value()) return WrongType(key, "an integer below 2^63", value->type);
  return integer;
}

absl::StatusOr<std::optional<double>> GgufFile::FindFloat(absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<double>();
  const std::optional<double> number = LoadFloat(file_, value->type, value->offset);
  if (!number.has_value()) return WrongType(key, "a number", value->type);
  return number;
}

absl::StatusOr<std::optional<bool>> GgufFile::FindBool(absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufValueType::kBool) return WrongType(key, "a bool", value->type);
  return std::optional<bool>(LoadAt<uint8_t>(file_, value->offset) != 0);
}

absl::StatusOr<std::optional<std::string>> GgufFile::FindString(absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<std::string>();
  if (value->type != GgufValueType::kString) return WrongType(key, "a string", value->type);
  return std::optional<std::string>(std::in_place,
                                    reinterpret_cast<const char*>(file_.data()) + value->offset,
                                    static_cast<size_t>(value->count));
}

absl::StatusOr<std::optional<std::vector<std::string>>> GgufFile::FindStrings(
    absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<std::vector<std::string>>();
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kString) {
    return WrongType(key, "an array of strings", value->type);
  }
  std::vector<std::string> strings;
  strings.reserve(value->count);
  // Parse walked over these bytes already: every length is within the file.
  uint64_t offset = value->offset;
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t size = LoadAt<uint64_t>(file_, offset);
    offset += sizeof(size);
    strings.emplace_back(reinterpret_cast<const char*>(file_.data()) + offset,
                         static_cast<size_t>(size));
    offset += size;
  }
  return std::optional<std::vector<std::string>>(std::move(strings));
}

absl::StatusOr<std::optional<std::vector<float>>> GgufFile::FindFloats(
    absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<std::vector<float>>();
  if (value->type != GgufValueType::kArray || value->element_type != GgufValueType::kFloat32) {
    return WrongType(key, "an array of float32", value->type);
  }
  std::vector<float> floats(value->count);
  if (!floats.empty()) {
    std::memcpy(floats.data(), file_.data() + value->offset, floats.size() * sizeof(float));
  }
  return std::optional<std::vector<float>>(std::move(floats));
}

absl::StatusOr<std::optional<std::vector<int64_t>>> GgufFile::FindIntegers(
    absl::string_view key) const {
  const Value* value = FindValue(key);
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  const bool is_bool = value->element_type == GgufValueType::kBool;
  const uint64_t bytes = ScalarBytes(value->element_type);
  if (value->type != GgufValueType::kArray || bytes == 0) {
    return WrongType(key, "an array of integers", value->type);
  }
  std::vector<int64_t> integers;
  integers.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> integer = LoadInteger(
        file_, is_bool ? GgufValueType::kUint8 : value->element_type, value->offset + i * bytes);
    if (!integer.has_value()) return WrongType(key, "an array of integers", value->type);
    integers.push_back(*integer);
  }
  return std::optional<std::vector<int64_t>>(std::move(integers));
}

}  // namespace tandem::model
