// Turns texts that an answer must not contain into the token sequences that spell them.
// Thread safety: pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace tandem::router {

// Appends to `out` each word's tokens without and with a space before it, since a word begins
// differently at the start of a text and inside it. The second spelling counts only if it begins
// with another token and is as long, as in vLLM: else its first tokens are a bare space, and the
// rest is banned already. White space alone has only the spelling that it has behind a letter.
// `encode` adds no special tokens. kInvalidArgument naming the word of which `encode` makes no
// token.
absl::Status AddBadWords(const std::vector<std::string>& words,
                         absl::FunctionRef<std::vector<TokenId>(absl::string_view)> encode,
                         std::vector<std::vector<TokenId>>& out);

}  // namespace tandem::router
