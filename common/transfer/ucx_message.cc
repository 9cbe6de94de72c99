#include "common/transfer/ucx_message.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem::transfer {
namespace {

// kind | origin | connection | body
constexpr size_t kOriginAt = 1;
constexpr size_t kConnectionAt = kOriginAt + sizeof(uint64_t);
constexpr size_t kBodyAt = kConnectionAt + sizeof(uint64_t);

void AppendHeaderNumber(std::string& out, uint64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint64_t NumberAt(absl::string_view bytes, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::string UcxHeader::Serialize() const {
  std::string bytes(1, static_cast<char>(kind));
  AppendHeaderNumber(bytes, origin);
  AppendHeaderNumber(bytes, connection);
  absl::StrAppend(&bytes, body);
  return bytes;
}

std::optional<UcxHeader> UcxHeader::Parse(absl::string_view bytes) {
  if (bytes.size() < kBodyAt) return std::nullopt;
  return UcxHeader{.kind = static_cast<UcxMessageKind>(bytes[0]),
                   .origin = NumberAt(bytes, kOriginAt),
                   .connection = NumberAt(bytes, kConnectionAt),
                   .body = bytes.substr(kBodyAt)};
}

}  // namespace tandem::transfer
