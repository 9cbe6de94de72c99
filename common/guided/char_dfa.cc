#include "common/guided/char_dfa.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::guided {
namespace {

absl::Status TooLarge(size_t states) {
  return absl::InvalidArgumentError(absl::StrCat("regex: needs more than ", states, " states"));
}

// A nondeterministic automaton with empty moves. Some empty moves are allowed only at the start or
// at the end of the text.
class CharNfa {
 public:
  explicit CharNfa(CompileBudget& budget) : budget_(budget) {}

  enum class When : uint8_t { kAlways, kAtBegin, kAtEnd };
  struct Move {
    int32_t target;
    When when;
  };
  struct State {
    std::vector<Move> moves;
    int32_t set = -1;  // index of the set that leads to `next`
    int32_t next = -1;
  };

  int32_t NewState() {
    states_.emplace_back();
    return static_cast<int32_t>(states_.size()) - 1;
  }
  void AddMove(int32_t from, int32_t to, When when = When::kAlways) {
    states_[from].moves.push_back({to, when});
  }
  // Adds an edge that consumes one code point of `set`; returns its target.
  int32_t AddSet(int32_t from, const CharSet& set) {
    const int32_t at = NewState(), next = NewState();
    AddMove(from, at);
    states_[at].set = static_cast<int32_t>(sets_.size());
    states_[at].next = next;
    sets_.push_back(set);
    return next;
  }

  absl::StatusOr<int32_t> Add(int32_t from, const RegexNode& node) {
    using Kind = RegexNode::Kind;
    if (states_.size() > kNfaStatesMax) return TooLarge(kNfaStatesMax);
    if (!budget_.Spend(1)) return budget_.status();
    switch (node.kind) {
      case Kind::kEmpty:
        return from;
      case Kind::kSet:
        return AddSet(from, node.set);
      case Kind::kSequence:
        for (const RegexNode& child : node.children) {
          ASSIGN_OR_RETURN(from, Add(from, child));
        }
        return from;
      case Kind::kAlternatives: {
        const int32_t end = NewState();
        for (const RegexNode& child : node.children) {
          const int32_t begin = NewState();
          AddMove(from, begin);
          ASSIGN_OR_RETURN(const int32_t done, Add(begin, child));
          AddMove(done, end);
        }
        return end;
      }
      case Kind::kRepeat:
        return AddRepeat(from, node);
      case Kind::kBegin:
      case Kind::kEnd: {
        const int32_t end = NewState();
        AddMove(from, end, node.kind == Kind::kBegin ? When::kAtBegin : When::kAtEnd);
        return end;
      }
    }
    return from;
  }

  // All states that `from` reaches without consuming a code point, sorted.
  std::vector<int32_t> Closure(std::vector<int32_t> from, bool at_begin, bool at_end) const {
    std::vector<int32_t> todo = from;
    std::vector<bool>& seen = seen_;
    seen.resize(states_.size());
    for (const int32_t state : from) seen[state] = true;
    while (!todo.empty()) {
      const int32_t state = todo.back();
      todo.pop_back();
      budget_.Spend(states_[state].moves.size());
      for (const Move& move : states_[state].moves) {
        if ((move.when == When::kAtBegin && !at_begin) || (move.when == When::kAtEnd && !at_end) ||
            seen[move.target]) {
          continue;
        }
        seen[move.target] = true;
        from.push_back(move.target);
        todo.push_back(move.target);
      }
    }
    for (const int32_t state : from) seen[state] = false;
    std::sort(from.begin(), from.end());
    return from;
  }

  const std::vector<State>& states() const { return states_; }
  const std::vector<CharSet>& sets() const { return sets_; }

 private:
  absl::StatusOr<int32_t> AddRepeat(int32_t from, const RegexNode& node) {
    const RegexNode& child = node.children[0];
    for (int32_t i = 0; i < node.min; ++i) {
      ASSIGN_OR_RETURN(from, Add(from, child));
      if (child.kind == RegexNode::Kind::kEmpty) break;
    }
    const int32_t end = NewState();
    if (node.max == kUnbounded) {
      const int32_t loop = NewState();
      AddMove(from, loop);
      AddMove(loop, end);
      ASSIGN_OR_RETURN(const int32_t done, Add(loop, child));
      AddMove(done, loop);
      return end;
    }
    AddMove(from, end);
    for (int32_t i = node.min; i < node.max; ++i) {
      const int32_t begin = NewState();
      AddMove(from, begin);
      ASSIGN_OR_RETURN(from, Add(begin, child));
      AddMove(from, end);
      if (states_.size() > kNfaStatesMax) return TooLarge(kNfaStatesMax);
    }
    return end;
  }

  CompileBudget& budget_;
  std::vector<State> states_;
  std::vector<CharSet> sets_;
  mutable std::vector<bool> seen_;
};

// Partitions the code points into letters: code points that belong to the same of the `sets`.
struct Alphabet {
  std::vector<CharSet> letters;                  // disjoint
  std::vector<std::vector<int32_t>> letters_of;  // by set

  // Incomplete when `budget` is exceeded.
  Alphabet(const std::vector<CharSet>& sets, CompileBudget& budget) : letters_of(sets.size()) {
    std::map<uint32_t, std::vector<std::pair<int32_t, bool>>> events;
    for (size_t i = 0; i < sets.size(); ++i) {
      if (!budget.Spend(sets[i].ranges().size())) return;
      for (const CharRange& range : sets[i].ranges()) {
        events[range.low].push_back({static_cast<int32_t>(i), true});
        events[range.high + 1].push_back({static_cast<int32_t>(i), false});
      }
    }
    std::map<std::vector<int32_t>, std::vector<CharRange>> groups;
    std::vector<int32_t> inside;  // sorted
    for (auto it = events.begin(); it != events.end(); ++it) {
      for (const auto& [set, enters] : it->second) {
        const auto at = std::lower_bound(inside.begin(), inside.end(), set);
        enters ? static_cast<void>(inside.insert(at, set)) : static_cast<void>(inside.erase(at));
      }
      if (!budget.Spend(inside.size())) return;
      const auto next = std::next(it);
      if (!inside.empty() && next != events.end()) {
        groups[inside].push_back({it->first, next->first - 1});
      }
    }
    for (const auto& [members, ranges] : groups) {
      for (const int32_t set : members) {
        letters_of[set].push_back(static_cast<int32_t>(letters.size()));
      }
      letters.push_back(CharSet(ranges));
    }
  }
};

// Subset construction.
class Determinizer {
 public:
  Determinizer(const CharNfa& nfa, int32_t accept, CompileBudget& budget)
      : nfa_(nfa), accept_(accept), budget_(budget), alphabet_(Distinct(nfa.sets()), budget) {}

  absl::StatusOr<CharDfa> Run(int32_t start) {
    RETURN_IF_ERROR(budget_.status());
    StateOf(nfa_.Closure({start}, /*at_begin=*/true, /*at_end=*/false), /*at_begin=*/true);
    for (size_t i = 0; i < subsets_.size(); ++i) {
      if (subsets_.size() > kDfaStatesMax) return TooLarge(kDfaStatesMax);
      RETURN_IF_ERROR(budget_.status());
      std::map<int32_t, std::vector<int32_t>> targets;  // by letter
      for (const int32_t member : subsets_[i]) {
        const CharNfa::State& state = nfa_.states()[member];
        if (state.set < 0) continue;
        const std::vector<int32_t>& letters = alphabet_.letters_of[distinct_[state.set]];
        if (!budget_.Spend(letters.size())) return budget_.status();
        for (const int32_t letter : letters) targets[letter].push_back(state.next);
      }
      std::map<int32_t, std::vector<CharRange>> edges;  // by target
      for (auto& [letter, next] : targets) {
        std::sort(next.begin(), next.end());
        next.erase(std::unique(next.begin(), next.end()), next.end());
        auto subset = nfa_.Closure(std::move(next), false, false);
        const auto& more = alphabet_.letters[letter].ranges();
        if (!budget_.Spend(subset.size() + more.size())) return budget_.status();
        auto& ranges = edges[StateOf(std::move(subset), false)];
        ranges.insert(ranges.end(), more.begin(), more.end());
      }
      for (auto& [target, ranges] : edges) {
        dfa_.states[i].edges.push_back({CharSet(std::move(ranges)), target});
      }
    }
    return std::move(dfa_);
  }

 private:
  // Patterns repeat a few sets, so the alphabet is built from the distinct ones. Incomplete when
  // the budget is exceeded.
  std::vector<CharSet> Distinct(const std::vector<CharSet>& sets) {
    std::vector<CharSet> kept;
    absl::flat_hash_map<CharSet, int32_t> index;
    absl::flat_hash_map<const void*, int32_t> copies;  // by the ranges that copies share
    for (const CharSet& set : sets) {
      const auto [copy, unseen] = copies.emplace(&set.ranges(), 0);
      if (unseen) {
        if (!budget_.Spend(set.ranges().size())) return kept;
        const auto [it, fresh] = index.emplace(set, static_cast<int32_t>(kept.size()));
        if (fresh) kept.push_back(set);
        copy->second = it->second;
      }
      distinct_.push_back(copy->second);
    }
    return kept;
  }

  int32_t StateOf(std::vector<int32_t> subset, bool at_begin) {
    const auto [it, fresh] = index_.emplace(subset, static_cast<int32_t>(subsets_.size()));
    if (fresh) {
      const auto at_end = nfa_.Closure(subset, at_begin, /*at_end=*/true);
      CharDfa::State state;
      state.accept = std::binary_search(at_end.begin(), at_end.end(), accept_);
      dfa_.states.push_back(std::move(state));
      subsets_.push_back(std::move(subset));
    }
    return it->second;
  }

  const CharNfa& nfa_;
  const int32_t accept_;
  CompileBudget& budget_;
  std::vector<int32_t> distinct_;  // by set of the NFA: which of the alphabet's
  const Alphabet alphabet_;
  CharDfa dfa_;
  std::vector<std::vector<int32_t>> subsets_;
  absl::flat_hash_map<std::vector<int32_t>, int32_t> index_;
};

}  // namespace

absl::StatusOr<bool> CharDfa::Matches(absl::string_view utf8, CompileBudget& budget) const {
  if (states.empty()) return false;
  int32_t state = 0;
  for (size_t i = 0; i < utf8.size();) {
    int length = 0;
    const uint32_t c = model::tokenizer_internal::DecodeUtf8(utf8.data() + i, &length);
    i += static_cast<size_t>(length);
    const std::vector<Edge>& edges = states[state].edges;
    const auto taken = std::find_if(edges.begin(), edges.end(),
                                    [c](const Edge& edge) { return edge.set.Contains(c); });
    if (!budget.Spend(1 + static_cast<size_t>(taken - edges.begin()))) return budget.status();
    if (taken == edges.end()) return false;
    state = taken->target;
  }
  return states[state].accept;
}

bool CharDfa::Empty() const {
  if (states.empty()) return true;
  std::vector<bool> seen(states.size());
  std::vector<int32_t> todo = {0};
  seen[0] = true;
  while (!todo.empty()) {
    const State& state = states[todo.back()];
    todo.pop_back();
    if (state.accept) return false;
    for (const Edge& edge : state.edges) {
      if (!seen[edge.target]) todo.push_back(edge.target);
      seen[edge.target] = true;
    }
  }
  return true;
}

absl::StatusOr<CharDfa> CompileRegex(const RegexNode& regex, RegexMode mode,
                                     CompileBudget& budget) {
  CharNfa nfa(budget);
  const int32_t start = nfa.NewState();
  int32_t at = start;
  if (mode == RegexMode::kContains) {
    const int32_t any = nfa.AddSet(start, CharSet::All());
    at = nfa.NewState();
    nfa.AddMove(start, at);
    nfa.AddMove(any, start);
  }
  ASSIGN_OR_RETURN(const int32_t matched, nfa.Add(at, regex));
  const int32_t accept = nfa.NewState();
  nfa.AddMove(matched, accept, CharNfa::When::kAtEnd);
  if (mode == RegexMode::kContains) {
    const int32_t rest = nfa.NewState();
    nfa.AddMove(matched, rest);
    nfa.AddMove(nfa.AddSet(rest, CharSet::All()), rest);
    nfa.AddMove(rest, accept, CharNfa::When::kAtEnd);
  }
  return Determinizer(nfa, accept, budget).Run(start);
}

absl::StatusOr<CharDfa> Intersect(const CharDfa& a, const CharDfa& b, CompileBudget& budget) {
  CharDfa both;
  if (a.states.empty() || b.states.empty()) return both;
  std::vector<std::pair<int32_t, int32_t>> pairs = {{0, 0}};
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int32_t> index = {{{0, 0}, 0}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > kDfaStatesMax) return TooLarge(kDfaStatesMax);
    const CharDfa::State& left = a.states[pairs[i].first];
    const CharDfa::State& right = b.states[pairs[i].second];
    CharDfa::State state{.accept = left.accept && right.accept};
    for (const CharDfa::Edge& x : left.edges) {
      for (const CharDfa::Edge& y : right.edges) {
        if (!budget.Spend(x.set.ranges().size() + y.set.ranges().size())) return budget.status();
        CharSet set = x.set.Intersection(y.set);
        if (set.empty()) continue;
        const std::pair<int32_t, int32_t> next(x.target, y.target);
        const auto [it, fresh] = index.emplace(next, static_cast<int32_t>(pairs.size()));
        if (fresh) pairs.push_back(next);
        state.edges.push_back({std::move(set), it->second});
      }
    }
    both.states.push_back(std::move(state));
  }
  return both;
}

absl::StatusOr<CharDfa> Complement(const CharDfa& dfa, CompileBudget& budget) {
  CharDfa all = dfa;
  if (all.states.empty()) all.states.emplace_back();
  const auto sink = static_cast<int32_t>(all.states.size());
  for (CharDfa::State& state : all.states) {
    state.accept = !state.accept;
    std::vector<CharRange> covered;
    for (const CharDfa::Edge& edge : state.edges) {
      if (!budget.Spend(edge.set.ranges().size())) return budget.status();
      covered.insert(covered.end(), edge.set.ranges().begin(), edge.set.ranges().end());
    }
    CharSet rest = CharSet(std::move(covered)).Complement();
    if (!rest.empty()) state.edges.push_back({std::move(rest), sink});
  }
  all.states.push_back({.accept = true, .edges = {{CharSet::All(), sink}}});
  if (!budget.Spend(all.states.size())) return budget.status();
  return all;
}

absl::StatusOr<CharDfa> WordsDfa(absl::Span<const std::string> words, CompileBudget& budget) {
  for (const std::string& word : words) {
    if (!budget.Spend(1 + word.size())) return budget.status();
  }
  std::vector<std::map<uint32_t, int32_t>> nodes(1);
  std::vector<bool> ends(1);
  for (const std::string& word : words) {
    int32_t at = 0;
    for (size_t i = 0; i < word.size();) {
      int length = 0;
      const uint32_t c = model::tokenizer_internal::DecodeUtf8(word.data() + i, &length);
      i += static_cast<size_t>(length);
      const auto [it, fresh] = nodes[at].emplace(c, static_cast<int32_t>(nodes.size()));
      at = it->second;
      if (fresh) {
        nodes.emplace_back();
        ends.push_back(false);
      }
    }
    ends[at] = true;
  }
  CharDfa dfa;
  for (size_t i = 0; i < nodes.size(); ++i) {
    CharDfa::State state{.accept = ends[i]};
    for (const auto& [c, target] : nodes[i]) state.edges.push_back({CharSet::Of(c, c), target});
    dfa.states.push_back(std::move(state));
  }
  return dfa;
}

absl::StatusOr<CharDfa> LengthDfa(int64_t min, int64_t max, CompileBudget& budget) {
  const int64_t last = max == kUnbounded ? min : max;
  if (last > static_cast<int64_t>(kDfaStatesMax)) return TooLarge(kDfaStatesMax);
  if (!budget.Spend(static_cast<size_t>(std::max<int64_t>(last, 0)) + 1)) return budget.status();
  CharDfa dfa;
  if (max != kUnbounded && max < min) return dfa;
  for (int64_t i = 0; i <= last; ++i) {
    CharDfa::State state{.accept = i >= min};
    const int64_t next = i < last ? i + 1 : max == kUnbounded ? i : -1;
    if (next >= 0) state.edges.push_back({CharSet::All(), static_cast<int32_t>(next)});
    dfa.states.push_back(std::move(state));
  }
  return dfa;
}

}  // namespace tandem::guided
