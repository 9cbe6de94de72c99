// Where the frontends write their automata: rules made of states, connected by bytes, calls and
// empty moves. Build() turns the whole into a Program.
// Thread safety: by one thread.
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

// Bounds on what a constraint may grow to.
inline constexpr size_t kGrammarStatesMax = 400000;
inline constexpr size_t kGrammarEdgesMax = 2000000;
inline constexpr int kNestingMax = 256;  // calls deep that a generated text may nest

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

  // A rule with its first and last state; what lies between is added afterwards.
  RuleId NewRule(std::string name);
  StateId start(RuleId rule) const { return rules_[static_cast<size_t>(rule)].start; }
  StateId end(RuleId rule) const { return rules_[static_cast<size_t>(rule)].end; }

  StateId NewState();
  void Empty(StateId from, StateId to);
  void Bytes(StateId from, uint8_t low, uint8_t high, StateId to);
  void Call(StateId from, RuleId rule, StateId to);

  // As above, but make the state they lead to.
  StateId Literal(StateId from, absl::string_view bytes);
  StateId Called(StateId from, RuleId rule);
  // One code point of the set in UTF-8.
  void CodePoint(StateId from, const CharSet& set, StateId to);
  // One of these byte strings, sharing prefixes.
  void Words(StateId from, std::vector<std::string> words, StateId to);

  // How a code point is spelled: as UTF-8, or as it stands in a JSON string.
  enum class Spelling { kPlain, kJsonString };
  void Spell(StateId from, const CharSet& set, Spelling spelling, StateId to);
  // A text of `dfa`.
  void Automaton(StateId from, const CharDfa& dfa, Spelling spelling, StateId to);

  // kInvalidArgument once a bound was crossed; from then on nothing is added.
  absl::Status status() const;

  const std::vector<std::vector<Move>>& moves() const { return moves_; }
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  void Add(StateId from, const Move& move);

  std::vector<std::vector<Move>> moves_;  // by state
  std::vector<Rule> rules_;
  size_t num_moves_ = 0;
  bool full_ = false;
};

// `token_bytes_max`: the length of the longest token, for Program::State::alias (0 = no aliases).
// Errors: kInvalidArgument for left recursion (names the rule), when nothing satisfies the
// constraint, and beyond the bounds.
absl::StatusOr<Program> Lower(const GrammarBuilder& builder, RuleId root, int token_bytes_max);

}  // namespace tandem::guided
