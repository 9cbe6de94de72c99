// Parses regular expressions into trees. The syntax is the part of RE2, PCRE and ECMA-262 that
// describes regular languages: literals, ., [...], \d \w \s and their complements, \p{L} and \p{N},
// groups that capture, have a name or are (?:...), |, * + ? {n} {n,} {n,m} (a lazy mark does not
// change the language), ^ $ \A \z \Z, \xHH \x{...} \uHHHH \u{...}, (?i). The parser rejects
// backreferences, look-around, atomic groups, possessive quantifiers, word boundaries, octal
// escapes, recursion and conditionals, and names them.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/guided/char_set.h"
#include "common/guided/compile_budget.h"

namespace tandem::guided {

inline constexpr int kRegexDepthMax = 200;
inline constexpr size_t kRegexBytesMax = 64 << 10;
inline constexpr int32_t kRepeatMax = 100000;
inline constexpr int32_t kUnbounded = -1;

struct RegexNode {
  enum class Kind { kEmpty, kSet, kSequence, kAlternatives, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kEmpty;
  CharSet set;                        // kSet: matches one code point of it
  std::vector<RegexNode> children;    // of kSequence and kAlternatives; kRepeat has exactly one
  int32_t min = 0, max = kUnbounded;  // kRepeat
};

// Errors: kInvalidArgument tells what is wrong with the pattern, and where, or that the pattern
// exceeds the budget.
absl::StatusOr<RegexNode> ParseRegex(absl::string_view pattern, CompileBudget& budget);

}  // namespace tandem::guided
