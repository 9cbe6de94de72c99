// GPT-2's spelling of bytes: each of the 256 byte values has its own printable character, so that a
// vocabulary of bytes can be written as text ("Ġthe" is " the"). Thread safety: pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

// The bytes that `spelling` stands for; nullopt when a character of it stands for no byte (the
// token is then ordinary text, as added tokens may be).
std::optional<std::string> BytesOfSpelling(absl::string_view spelling);

// The spelling of `bytes`.
std::string SpellingOfBytes(absl::string_view bytes);

}  // namespace tandem::model::tokenizer_internal
