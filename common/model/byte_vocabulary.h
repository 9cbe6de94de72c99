// The vocabulary of clusters that serve no model (the hash engine): token i is byte i, and three
// special tokens follow. Thread safety: pure functions.
#pragma once

#include "common/base/ids.h"
#include "common/model/checkpoint.h"

namespace tandem::model {

inline constexpr TokenId kByteStartToken = 256;  // "<|im_start|>"
inline constexpr TokenId kBytePadToken = 257;    // "<|pad|>"
inline constexpr TokenId kByteEndToken = 258;    // "<|im_end|>", ends an answer
inline constexpr int32_t kByteVocabularySize = 259;

// Byte-level BPE without merges.
TokenizerSource ByteVocabulary();
// ChatML.
const std::string& ByteVocabularyChatTemplate();

}  // namespace tandem::model
