// Finds which bad words an answer is about to complete, in few steps however many there are.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::request {

// Orders token sequences by their tokens before the last, the nearest to the last first. Then those
// that the end of an answer can complete lie side by side.
void SortBadWords(std::vector<std::vector<TokenId>>& words);

// Appends to `banned` the last token of each word whose other tokens end `output`; a token may
// repeat. Returns the steps that it took, each a look at one token of one word: two binary searches
// over the words for each token of the longest word but its last, and one for each word found.
// REQUIRES: SortBadWords; no word is empty.
size_t FindBannedTokens(absl::Span<const std::vector<TokenId>> words,
                        absl::Span<const TokenId> output, std::vector<TokenId>& banned);

}  // namespace tandem::request
