// Builds a grammar out of automata: the frontends add rules, which consist of states connected by
// bytes, calls of rules and empty moves. Lower() compiles the result into a Program.
// Thread safety: none; one thread uses a builder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/guided/char_dfa.h"
#include "common/guided/char_set.h"
#include "common/guided/program.h"

namespace tandem::guided {

using RuleId = int32_t;

// Bounds on the size of a constraint.
inline constexpr size_t kGrammarStatesMax = 400000;
inline constexpr size_t kGrammarEdgesMax = 2000000;
inline constexpr int kNestingMax = 256;  // how deep the calls of a generated text may nest

class GrammarBuilder {
 public:
  struct Move {
    enum class Kind : uint8_t { kEmpty, kBytes, kCall };
    Kind kind = Kind::kEmpty;
    uint8_t low = 0, high = 0;
    RuleId rule = -1;
    StateId target = 0;
  };
  struct Rule {
    std::string name;
    StateId start = 0, end = 0;
  };

  // The builder spends a step for each state and each edge. `budget` outlives it.
  explicit GrammarBuilder(CompileBudget& budget) : budget_(budget) {}

  CompileBudget& budget() const { return budget_; }

  // Adds a rule that has a first and a last state. The caller adds what lies between them.
  RuleId NewRule(std::string name);
  StateId start(RuleId rule) const { return rules_[static_cast<size_t>(rule)].start; }
  StateId end(RuleId rule) const { return rules_[static_cast<size_t>(rule)].end; }

  StateId NewState();
  // Connect `from` to `to` by nothing, by one byte of low..high, or by a call of `rule`.
  void AddEmpty(StateId from, StateId to);
  void AddBytes(StateId from, uint8_t low, uint8_t high, StateId to);
  void AddCall(StateId from, RuleId rule, StateId to);

  // Connect `from` to a new state by all of `bytes`, or by a call of `rule`; return that state.
  StateId AfterLiteral(StateId from, absl::string_view bytes);
  StateId AfterCall(StateId from, RuleId rule);
  // Connects by one code point of `set`, in UTF-8.
  void AddCodePoint(StateId from, const CharSet& set, StateId to);
  // Connects by one of the byte strings `words`. They share the states of common prefixes.
  void AddWords(StateId from, std::vector<std::string> words, StateId to);

  // How a code point is written: as UTF-8, or as in a JSON string, with escapes where needed.
  enum class Spelling { kPlain, kJsonString };
  // Connects by one code point of `set`.
  void AddSet(StateId from, const CharSet& set, Spelling spelling, StateId to);
  // Connects by a text that `dfa` accepts.
  void AddAutomaton(StateId from, const CharDfa& dfa, Spelling spelling, StateId to);

  // kInvalidArgument once a bound or the budget is exceeded; from then on the builder adds nothing.
  absl::Status status() const;

  const std::vector<std::vector<Move>>& moves() const { return moves_; }
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  void Add(StateId from, const Move& move);

  CompileBudget& budget_;
  std::vector<std::vector<Move>> moves_;  // by state
  std::vector<Rule> rules_;
  size_t num_moves_ = 0;
  bool full_ = false;
};

// Compiles the grammar whose start rule is `root` (common/guided/lower.cc). `token_bytes_max`: the
// length of the longest token, for Program::State::alias (0: no aliases).
// Errors: kInvalidArgument for left recursion (the message names the rule), when no text satisfies
// the constraint, and when a bound is exceeded.
absl::StatusOr<Program> Lower(const GrammarBuilder& builder, RuleId root, int token_bytes_max);

}  // namespace tandem::guided
