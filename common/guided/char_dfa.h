// Deterministic finite automata over code points. JSON Schema's patterns, key sets and number
// ranges are computed with them: the regular expressions give unions, this header gives
// intersections and complements. Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/guided/char_set.h"
#include "common/guided/compile_budget.h"
#include "common/guided/regex.h"

namespace tandem::guided {

// Bounds on the states of an automaton, and of the nondeterministic one that it is made from.
inline constexpr size_t kDfaStatesMax = 30000;
inline constexpr size_t kNfaStatesMax = 200000;

struct CharDfa {
  struct Edge {
    CharSet set;
    int32_t target = 0;
  };
  struct State {
    bool accept = false;
    std::vector<Edge> edges;  // disjoint sets; no string goes on with others
  };
  std::vector<State> states;  // state 0 is the start; no states: the empty language

  // Whether the text is accepted. Spends a step for each code point, and one for each edge that it
  // looks at. Errors: kInvalidArgument when the budget is exceeded.
  absl::StatusOr<bool> Matches(absl::string_view utf8, CompileBudget& budget) const;
  // Whether no string is accepted.
  bool Empty() const;
};

// Each function below spends what it does from `budget`. Errors: kInvalidArgument when the budget
// is exceeded, or one of the bounds above.

// kContains: the strings that contain a match of `regex` (JSON Schema's meaning of `pattern`).
// kWhole: the strings that it matches from start to end.
enum class RegexMode { kContains, kWhole };
absl::StatusOr<CharDfa> CompileRegex(const RegexNode& regex, RegexMode mode, CompileBudget& budget);

absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b, CompileBudget& budget);
absl::StatusOr<CharDfa> Complement(const CharDfa& dfa, CompileBudget& budget);
// Accepts exactly `words`. REQUIRES: they are valid UTF-8.
absl::StatusOr<CharDfa> WordsDfa(absl::Span<const std::string> words, CompileBudget& budget);
// Accepts strings of `min` to `max` code points (`max` = kUnbounded: no upper limit).
absl::StatusOr<CharDfa> LengthDfa(int64_t min, int64_t max, CompileBudget& budget);

}  // namespace tandem::guided
