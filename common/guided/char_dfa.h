// Deterministic finite automata over code points: what patterns, key sets and number ranges are
// computed with (union is the regex's, intersection and complement are here).
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/guided/char_set.h"
#include "common/guided/regex.h"

namespace tandem::guided {

// Bound on an automaton's states, and on a nondeterministic one's on the way to it.
inline constexpr size_t kDfaStatesMax = 30000;
inline constexpr size_t kNfaStatesMax = 200000;

struct CharDfa {
  static constexpr int32_t kDead = -1;
  struct Edge {
    CharSet set;
    int32_t target = 0;
  };
  struct State {
    bool accept = false;
    std::vector<Edge> edges;  // disjoint sets; what is in none leads nowhere
  };
  std::vector<State> states;  // the first one is the start; none = the empty language

  bool Matches(absl::string_view utf8) const;
  // Whether no string is accepted.
  bool Empty() const;
};

// The strings that contain a match of the pattern (JSON Schema's meaning of `pattern`), or that it
// matches from end to end. kInvalidArgument when that takes more states than the bounds.
enum class RegexMode { kContains, kWhole };
absl::StatusOr<CharDfa> CompileRegex(const RegexNode& regex, RegexMode mode);

absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b);
CharDfa Complement(const CharDfa& dfa);
// Exactly these strings. REQUIRES: valid UTF-8.
CharDfa WordsDfa(absl::Span<const std::string> words);
// Strings of at least `min` and at most `max` code points (kUnbounded = any).
absl::StatusOr<CharDfa> LengthDfa(int64_t min, int64_t max);

}  // namespace tandem::guided
