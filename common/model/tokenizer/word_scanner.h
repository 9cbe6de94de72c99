// Hand-written scanners, equivalent to the four pre-tokenisers that most checkpoints use. Each
// returns where the word that begins at `p` ends. Tests compare them with these patterns:
//   kGpt2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   kSmollm  every number character alone, then kGpt2 on the text in between
//   kLlama3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//            | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//   kQwen2   kLlama3 with \p{N} in place of \p{N}{1,3}
// Thread safety: pure functions.
#pragma once

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

enum class ScannerKind { kNone, kGpt2, kSmollm, kLlama3, kQwen2 };

extern const absl::string_view kGpt2Pattern;
extern const absl::string_view kLlama3Pattern;
extern const absl::string_view kQwen2Pattern;

using ScanWordFn = const char* (*)(const char* p, const char* end);

// The scanner of `kind`: takes well-formed UTF-8 [p, end), p < end; returns the end of the first
// word, > p. nullptr for kNone.
ScanWordFn WordScannerOf(ScannerKind kind);

}  // namespace tandem::model::tokenizer_internal
