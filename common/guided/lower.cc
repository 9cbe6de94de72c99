// Implements Lower (common/guided/grammar_builder.h): compiles a builder's automata into a Program.
// It removes empty moves and states that lead nowhere, rejects left recursion, and gives states
// that no token can tell apart a common alias.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/grammar_builder.h"

namespace tandem::guided {
namespace {

using Move = GrammarBuilder::Move;
constexpr uint32_t kInfinite = 1u << 30;
constexpr StateId kNone = ~StateId{0};
// Bound on the work of finding aliases, in edges visited.
constexpr size_t kAliasWorkMax = 2'000'000;

class Lowering {
 public:
  Lowering(const GrammarBuilder& builder, RuleId root)
      : builder_(builder), moves_(builder.moves()), rules_(builder.rules()), root_(root) {}

  absl::StatusOr<Program> Run(int token_bytes_max) {
    RETURN_IF_ERROR(builder_.status());
    FindNullable();
    FindHeights();
    RETURN_IF_ERROR(builder_.budget().status());
    const uint32_t height = heights_[builder_.start(root_)];
    if (height == kInfinite) {
      return absl::InvalidArgumentError("nothing can satisfy the constraint");
    }
    if (height > static_cast<uint32_t>(kNestingMax)) {
      return absl::InvalidArgumentError(absl::StrCat("the shortest answer nests ", height,
                                                     " levels, expected at most ", kNestingMax));
    }
    RETURN_IF_ERROR(CheckLeftRecursion());
    FindReaders();
    RETURN_IF_ERROR(Emit());
    FindAliases(token_bytes_max);
    return std::move(program_);
  }

 private:
  bool Nullable(RuleId rule) const { return nullable_[static_cast<size_t>(rule)]; }
  bool PassesEmpty(const Move& move) const {
    return move.kind == Move::Kind::kEmpty ||
           (move.kind == Move::Kind::kCall && Nullable(move.rule));
  }

  // All states that `from` reaches without a byte, itself included.
  std::vector<StateId> Closure(StateId from) {
    std::vector<StateId> found = {from};
    ++mark_;
    marks_.resize(moves_.size());
    marks_[from] = mark_;
    for (size_t i = 0; i < found.size(); ++i) {
      builder_.budget().Spend(1 + moves_[found[i]].size());
      for (const Move& move : moves_[found[i]]) {
        if (!PassesEmpty(move) || marks_[move.target] == mark_) continue;
        marks_[move.target] = mark_;
        found.push_back(move.target);
      }
    }
    return found;
  }

  // Walks backwards from every rule's end over moves that consume no byte. Once a rule is known to
  // match the empty text, calls of it are such moves too.
  void FindNullable() {
    nullable_.assign(rules_.size(), false);
    std::vector<std::vector<std::pair<StateId, RuleId>>> into(moves_.size());  // -1: empty move
    std::vector<std::vector<std::pair<StateId, StateId>>> calls(rules_.size());
    std::vector<std::vector<RuleId>> starts(moves_.size());
    for (StateId s = 0; s < moves_.size(); ++s) {
      for (const Move& move : moves_[s]) {
        if (move.kind == Move::Kind::kEmpty) into[move.target].push_back({s, -1});
        if (move.kind == Move::Kind::kCall) {
          into[move.target].push_back({s, move.rule});
          calls[static_cast<size_t>(move.rule)].push_back({s, move.target});
        }
      }
    }
    std::vector<bool> reaches_end(moves_.size());
    std::vector<StateId> todo;
    const auto reach = [&](StateId s) {
      if (!reaches_end[s]) todo.push_back(s);
      reaches_end[s] = true;
    };
    for (size_t r = 0; r < rules_.size(); ++r) {
      starts[rules_[r].start].push_back(static_cast<RuleId>(r));
      reach(rules_[r].end);
    }
    while (!todo.empty()) {
      const StateId state = todo.back();
      todo.pop_back();
      for (const auto& [from, rule] : into[state]) {
        if (rule < 0 || Nullable(rule)) reach(from);
      }
      for (const RuleId rule : starts[state]) {
        nullable_[static_cast<size_t>(rule)] = true;
        for (const auto& [from, target] : calls[static_cast<size_t>(rule)]) {
          if (reaches_end[target]) reach(from);
        }
      }
    }
  }

  // heights_[s]: the nesting depth of calls on the least nested path from s to its rule's end.
  void FindHeights() {
    std::vector<std::vector<StateId>> dependents(moves_.size());
    for (StateId s = 0; s < moves_.size(); ++s) {
      for (const Move& move : moves_[s]) {
        dependents[move.target].push_back(s);
        if (move.kind == Move::Kind::kCall) dependents[builder_.start(move.rule)].push_back(s);
      }
    }
    // Goes level by level, so that it decides every state once.
    heights_.assign(moves_.size(), kInfinite);
    std::vector<StateId> todo, next;
    for (const GrammarBuilder::Rule& rule : rules_) todo.push_back(rule.end);
    for (const StateId s : todo) heights_[s] = 0;
    for (uint32_t level = 0; !todo.empty() || !next.empty(); ++level) {
      for (const StateId s : next) {
        if (heights_[s] == kInfinite) heights_[s] = level, todo.push_back(s);
      }
      next.clear();
      while (!todo.empty()) {
        const StateId state = todo.back();
        todo.pop_back();
        for (const StateId s : dependents[state]) {
          if (heights_[s] != kInfinite) continue;
          // HeightOf looks at every edge of s, and s is met once for each of them.
          if (!builder_.budget().Spend(moves_[s].size())) return;
          const uint32_t height = HeightOf(s);
          if (height <= level) {
            heights_[s] = level;
            todo.push_back(s);
          } else if (height == level + 1) {
            next.push_back(s);
          }
        }
      }
    }
  }

  uint32_t HeightOf(StateId state) const {
    uint32_t best = kInfinite;
    for (const Move& move : moves_[state]) {
      uint32_t height = heights_[move.target];
      if (move.kind == Move::Kind::kCall) {
        height = std::max(height, heights_[builder_.start(move.rule)] + 1);
      }
      best = std::min(best, height);
    }
    return best;
  }

  // The states from which some byte can be read. From the others a rule can only end.
  void FindReaders() {
    std::vector<std::vector<StateId>> dependents(moves_.size());
    std::vector<StateId> todo;
    reads_.assign(moves_.size(), false);
    const auto reads = [&](StateId s) {
      if (!reads_[s]) todo.push_back(s);
      reads_[s] = true;
    };
    for (StateId s = 0; s < moves_.size(); ++s) {
      for (const Move& move : moves_[s]) {
        if (!Live(move.target)) continue;
        if (move.kind == Move::Kind::kBytes) reads(s);
        dependents[move.target].push_back(s);
        if (move.kind == Move::Kind::kCall) dependents[builder_.start(move.rule)].push_back(s);
      }
    }
    while (!todo.empty()) {
      const StateId state = todo.back();
      todo.pop_back();
      for (const StateId s : dependents[state]) reads(s);
    }
  }

  absl::Status CheckLeftRecursion() {
    // The rules that a rule can call before it consumes a byte.
    std::vector<std::vector<RuleId>> first(rules_.size());
    for (size_t r = 0; r < rules_.size(); ++r) {
      RETURN_IF_ERROR(builder_.budget().status());
      for (const StateId s : Closure(rules_[r].start)) {
        for (const Move& move : moves_[s]) {
          if (move.kind == Move::Kind::kCall && heights_[builder_.start(move.rule)] < kInfinite) {
            first[r].push_back(move.rule);
          }
        }
      }
    }
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> seen(rules_.size(), kNew);
    std::vector<std::pair<size_t, size_t>> path;  // (rule, index of its next call)
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (seen[r] != kNew) continue;
      path.push_back({r, 0});
      seen[r] = kOpen;
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        if (next == first[rule].size()) {
          seen[rule] = kDone;
          path.pop_back();
          continue;
        }
        const auto callee = static_cast<size_t>(first[rule][next++]);
        if (seen[callee] == kOpen) {
          return absl::InvalidArgumentError(absl::StrCat(
              "rule ", rules_[callee].name, " is left-recursive: it can begin with itself"));
        }
        if (seen[callee] == kNew) {
          seen[callee] = kOpen;
          path.push_back({callee, 0});
        }
      }
    }
    return absl::OkStatus();
  }

  StateId IdOf(StateId old) {
    if (ids_[old] == kNone) {
      ids_[old] = static_cast<StateId>(order_.size());
      order_.push_back(old);
    }
    return ids_[old];
  }

  bool Live(StateId s) const { return heights_[s] <= static_cast<uint32_t>(kNestingMax); }

  // Emits the states that edges lead to, each with the edges of all states that it reaches without
  // a
  // byte.
  absl::Status Emit() {
    ids_.assign(moves_.size(), kNone);
    std::vector<bool> is_end(moves_.size());
    for (const GrammarBuilder::Rule& rule : rules_) is_end[rule.end] = true;
    program_.start = IdOf(builder_.start(root_));
    for (size_t i = 0; i < order_.size(); ++i) {
      RETURN_IF_ERROR(builder_.budget().status());
      Program::State state;
      state.bytes_begin = static_cast<uint32_t>(program_.bytes.size());
      state.calls_begin = static_cast<uint32_t>(program_.calls.size());
      state.height = static_cast<uint16_t>(heights_[order_[i]]);
      for (const StateId s : Closure(order_[i])) {
        state.accept = state.accept || is_end[s];
        for (const Move& move : moves_[s]) EmitMove(move);
      }
      SortUnique(state);
      state.bytes_end = static_cast<uint32_t>(program_.bytes.size());
      state.calls_end = static_cast<uint32_t>(program_.calls.size());
      state.only_accept = state.accept && state.bytes_begin == state.bytes_end &&
                          state.calls_begin == state.calls_end;
      program_.states.push_back(state);
      if (program_.bytes.size() + program_.calls.size() > kGrammarEdgesMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("the constraint needs more than ", kGrammarEdgesMax, " edges"));
      }
    }
    return absl::OkStatus();
  }

  void EmitMove(const Move& move) {
    if (!Live(move.target)) return;
    if (move.kind == Move::Kind::kBytes) {
      program_.bytes.push_back({move.low, move.high, IdOf(move.target)});
    } else if (move.kind == Move::Kind::kCall && Live(builder_.start(move.rule)) &&
               reads_[builder_.start(move.rule)]) {  // else only empty, and passed by: Closure()
      program_.calls.push_back({IdOf(builder_.start(move.rule)), IdOf(move.target)});
    }
  }

  void SortUnique(const Program::State& state) {
    const auto bytes = program_.bytes.begin() + state.bytes_begin;
    const auto key = [](const ByteEdge& e) { return std::tuple(e.low, e.high, e.target); };
    std::sort(bytes, program_.bytes.end(),
              [&](const ByteEdge& a, const ByteEdge& b) { return key(a) < key(b); });
    program_.bytes.erase(
        std::unique(bytes, program_.bytes.end(),
                    [&](const ByteEdge& a, const ByteEdge& b) { return key(a) == key(b); }),
        program_.bytes.end());
    const auto calls = program_.calls.begin() + state.calls_begin;
    const auto call_key = [](const CallEdge& e) { return std::tuple(e.callee, e.after); };
    std::sort(calls, program_.calls.end(),
              [&](const CallEdge& a, const CallEdge& b) { return call_key(a) < call_key(b); });
    program_.calls.erase(std::unique(calls, program_.calls.end(),
                                     [&](const CallEdge& a, const CallEdge& b) {
                                       return call_key(a) == call_key(b);
                                     }),
                         program_.calls.end());
  }

  // Partition refinement, one round a byte: states that are still in one class after as many rounds
  // as a token has bytes allow the same tokens. (Calls of nullable rules have empty moves beside
  // them, so a path of n bytes needs at most n rounds.)
  void FindAliases(int token_bytes_max) {
    std::vector<Program::State>& states = program_.states;
    std::vector<uint32_t> classes(states.size()), refined(states.size());
    const size_t work = program_.bytes.size() + program_.calls.size() + states.size();
    const auto rounds_max = static_cast<int64_t>(kAliasWorkMax / std::max<size_t>(work, 1));
    if (token_bytes_max == 0 || rounds_max < token_bytes_max) {
      for (StateId s = 0; s < states.size(); ++s) states[s].alias = s;
      return;
    }
    size_t num_classes = 0;
    std::vector<uint32_t> signature;
    for (int round = 0; round <= token_bytes_max + 1; ++round) {
      absl::flat_hash_map<std::vector<uint32_t>, uint32_t> known;
      for (StateId s = 0; s < states.size(); ++s) {
        Signature(s, classes, signature);
        refined[s] = known.emplace(signature, static_cast<uint32_t>(known.size())).first->second;
      }
      std::swap(classes, refined);
      if (known.size() == num_classes) break;
      num_classes = known.size();
    }
    std::vector<StateId> first(num_classes, kNone);
    for (StateId s = 0; s < states.size(); ++s) {
      if (first[classes[s]] == kNone) first[classes[s]] = s;
      states[s].alias = first[classes[s]];
    }
  }

  void Signature(StateId s, const std::vector<uint32_t>& classes, std::vector<uint32_t>& out) {
    const Program::State& state = program_.states[s];
    out = {state.accept ? 1u : 0u, state.height, classes[s]};
    std::vector<std::pair<uint32_t, uint32_t>> edges;
    for (const ByteEdge& edge : program_.BytesOf(s)) {
      edges.push_back({(uint32_t{edge.low} << 8) | edge.high, classes[edge.target]});
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    for (const auto& [label, target] : edges) out.insert(out.end(), {label, target});
    out.push_back(kNone);
    edges.clear();
    for (const CallEdge& call : program_.CallsOf(s)) {
      edges.push_back({call.callee, classes[call.after]});
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    for (const auto& [callee, target] : edges) out.insert(out.end(), {callee, target});
  }

  const GrammarBuilder& builder_;
  const std::vector<std::vector<Move>>& moves_;
  const std::vector<GrammarBuilder::Rule>& rules_;
  const RuleId root_;
  std::vector<bool> nullable_;
  std::vector<uint32_t> heights_;  // by the builder's state
  std::vector<bool> reads_;        // by the builder's state
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  std::vector<StateId> ids_, order_;  // old to new, new to old
  Program program_;
};

}  // namespace

absl::StatusOr<Program> Lower(const GrammarBuilder& builder, RuleId root, int token_bytes_max) {
  return Lowering(builder, root).Run(token_bytes_max);
}

}  // namespace tandem::guided
