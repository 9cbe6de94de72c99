// Puts long runs of combining marks into Unicode's canonical order. ICU sorts marks by insertion,
// which takes quadratic time on a run that alternates two classes; runs that are in order it only
// reads. The result has the same normal forms as the text. Cost: linear in the text.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

// Shorter runs stay as they are, in code points.
inline constexpr int kLongMarkRun = 64;

// Writes `text` with its long runs in order to `*out`, and returns true; returns false when there
// is none. `compatible`: the text is for NFKC or NFKD, whose decompositions have marks of their
// own. REQUIRES: well-formed UTF-8.
bool OrderLongMarkRuns(absl::string_view text, bool compatible, std::string* out);

}  // namespace tandem::model::tokenizer_internal
