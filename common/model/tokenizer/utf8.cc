#include "common/model/tokenizer/utf8.h"

#include <cstring>

namespace tandem::model::tokenizer_internal {
namespace {

// The bytes after `lead` and the range of the first of them (Unicode, table 3-7); length 0 for a
// byte that starts nothing.
struct LeadByte {
  int length;
  uint8_t second_min;
  uint8_t second_max;
};

LeadByte ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// The length of the leading run of ASCII.
size_t AsciiPrefix(absl::string_view bytes) {
  size_t i = 0;
  while (i + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word & 0x8080808080808080u) break;
    i += 8;
  }
  while (i < bytes.size() && static_cast<uint8_t>(bytes[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Step ScanUtf8(absl::string_view bytes) {
  const LeadByte lead = ClassifyLead(static_cast<uint8_t>(bytes[0]));
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1};
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Utf8Kind::kIncomplete, i};
    const auto b = static_cast<uint8_t>(bytes[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (b < min || b > max) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kValid, lead.length};
}

bool IsValidUtf8(absl::string_view bytes) {
  while (true) {
    bytes.remove_prefix(AsciiPrefix(bytes));
    if (bytes.empty()) return true;
    const Utf8Step step = ScanUtf8(bytes);
    if (step.kind != Utf8Kind::kValid) return false;
    bytes.remove_prefix(step.length);
  }
}

void AppendLossyUtf8(absl::string_view bytes, std::string* out) {
  while (!bytes.empty()) {
    const size_t ascii = AsciiPrefix(bytes);
    out->append(bytes.data(), ascii);
    bytes.remove_prefix(ascii);
    if (bytes.empty()) return;
    const Utf8Step step = ScanUtf8(bytes);
    const absl::string_view sequence = bytes.substr(0, step.length);
    const absl::string_view text = step.kind == Utf8Kind::kValid ? sequence : kReplacementCharacter;
    out->append(text.data(), text.size());
    bytes.remove_prefix(step.length);
  }
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const auto c = static_cast<uint32_t>(code_point);
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
  } else {
    if (c < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | c >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | c >> 18));
      out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

}  // namespace tandem::model::tokenizer_internal
