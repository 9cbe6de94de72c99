#include "common/model/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

constexpr int kCharacterLimit = 0x144;  // one more than the highest character used

// Printable Latin-1 characters stand for themselves; the others, in order, for U+0100 and on.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteMaps {
  std::array<char32_t, 256> character_of_byte{};
  std::array<int16_t, kCharacterLimit> byte_of_character{};  // -1: none

  constexpr ByteMaps() {
    for (auto& byte : byte_of_character) byte = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int character = StandsForItself(byte) ? byte : next++;
      character_of_byte[byte] = static_cast<char32_t>(character);
      byte_of_character[character] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteMaps kMaps;

}  // namespace

std::optional<std::string> BytesOfSpelling(absl::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Step step = ScanUtf8(spelling);
    if (step.kind != Utf8Kind::kValid) return std::nullopt;
    int length = 0;
    const char32_t character = DecodeUtf8(spelling.data(), &length);
    if (character >= kCharacterLimit || kMaps.byte_of_character[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kMaps.byte_of_character[character]));
    spelling.remove_prefix(length);
  }
  return bytes;
}

std::string SpellingOfBytes(absl::string_view bytes) {
  std::string spelling;
  for (const char byte : bytes) {
    AppendUtf8(kMaps.character_of_byte[static_cast<uint8_t>(byte)], &spelling);
  }
  return spelling;
}

}  // namespace tandem::model::tokenizer_internal
