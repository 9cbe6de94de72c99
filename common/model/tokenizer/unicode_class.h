// Classifies a code point as letter, number, white space or other, for pre-tokenisers. The table is
// part of Tandem, not the system's ICU, so that a text has the same tokens on every machine.
// Thread safety: pure functions over a constant table.
#pragma once

#include <cstdint>

namespace tandem::model::tokenizer_internal {

// Classes exclude one another, so one comparison decides.
enum UnicodeClass : uint8_t {
  kOther = 0,
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 3,   // \s
  // Numbers that the patterns' older Unicode lacks: the Digits pre-tokeniser recognises them, \p{N}
  // does not.
  kDigitsOnly = 4,
};

UnicodeClass ClassOf(char32_t code_point);

}  // namespace tandem::model::tokenizer_internal
