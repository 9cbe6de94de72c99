// Rewrites a pattern of Oniguruma in Ruby's syntax, which Hugging Face's tokenizers use, as the
// pattern of PCRE2 that matches the same text. What the two read in the same way stays as it is.
// The rewritten pattern is meant for PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE: Ruby's ^ and $ match
// at each line.
// Thread safety: a pure function. Bounds: classes nest 16 levels deep; the result has at most some
// 500 bytes for each byte of the pattern.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

// Errors: kUnimplemented for what has no rewriting, with its offset; kInvalidArgument for a class
// without end. REQUIRES: well-formed UTF-8.
absl::StatusOr<std::string> PatternOfOniguruma(absl::string_view pattern);

}  // namespace tandem::model::tokenizer_internal
