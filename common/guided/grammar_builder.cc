#include "common/guided/grammar_builder.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::guided {
namespace {

using model::tokenizer_internal::AppendUtf8;

// Splits [low, high] where the length of the UTF-8 encoding changes, then where a prefix of the
// encoding changes. Every piece is then a product of byte ranges.
void AddUtf8(GrammarBuilder& builder, StateId from, uint32_t low, uint32_t high, StateId to) {
  for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (low <= limit && high > limit) {
      AddUtf8(builder, from, low, limit, to);
      AddUtf8(builder, from, limit + 1, high, to);
      return;
    }
  }
  const int length = high < 0x80 ? 1 : high < 0x800 ? 2 : high < 0x10000 ? 3 : 4;
  for (int i = 1; i < length; ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      AddUtf8(builder, from, low, low | mask, to);
      AddUtf8(builder, from, (low | mask) + 1, high, to);
      return;
    }
    if ((high & mask) != mask) {
      AddUtf8(builder, from, low, (high & ~mask) - 1, to);
      AddUtf8(builder, from, high & ~mask, high, to);
      return;
    }
  }
  std::string first, last;
  AppendUtf8(low, &first);
  AppendUtf8(high, &last);
  for (size_t i = 0; i < first.size(); ++i) {
    const StateId next = i + 1 == first.size() ? to : builder.NewState();
    builder.AddBytes(from, static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next);
    from = next;
  }
}

// The letter of the two-character JSON escape of a code point; 0 when it has none.
char ShortEscape(uint32_t c) {
  switch (c) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

}  // namespace

RuleId GrammarBuilder::NewRule(std::string name) {
  const StateId start = NewState();
  rules_.push_back({std::move(name), start, NewState()});
  return static_cast<RuleId>(rules_.size()) - 1;
}

StateId GrammarBuilder::NewState() {
  if (moves_.size() >= kGrammarStatesMax || !budget_.Spend(1)) {
    full_ = true;
    return 0;
  }
  moves_.emplace_back();
  return static_cast<StateId>(moves_.size()) - 1;
}

void GrammarBuilder::Add(StateId from, const Move& move) {
  if (num_moves_ >= kGrammarEdgesMax || !budget_.Spend(1)) full_ = true;
  if (full_) return;
  moves_[from].push_back(move);
  ++num_moves_;
}

absl::Status GrammarBuilder::status() const {
  if (budget_.exceeded()) return budget_.status();
  if (!full_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the constraint needs more than ",
                                                 kGrammarStatesMax, " states or ", kGrammarEdgesMax,
                                                 " edges"));
}

void GrammarBuilder::AddEmpty(StateId from, StateId to) {
  Add(from, {.kind = Move::Kind::kEmpty, .target = to});
}
void GrammarBuilder::AddBytes(StateId from, uint8_t low, uint8_t high, StateId to) {
  Add(from, {.kind = Move::Kind::kBytes, .low = low, .high = high, .target = to});
}
void GrammarBuilder::AddCall(StateId from, RuleId rule, StateId to) {
  Add(from, {.kind = Move::Kind::kCall, .rule = rule, .target = to});
}

StateId GrammarBuilder::AfterLiteral(StateId from, absl::string_view bytes) {
  for (const char byte : bytes) {
    const StateId next = NewState();
    AddBytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), next);
    from = next;
  }
  return from;
}

StateId GrammarBuilder::AfterCall(StateId from, RuleId rule) {
  const StateId next = NewState();
  AddCall(from, rule, next);
  return next;
}

void GrammarBuilder::AddCodePoint(StateId from, const CharSet& set, StateId to) {
  for (const CharRange& range : set.ranges()) {
    if (full_) return;
    AddUtf8(*this, from, range.low, range.high, to);
  }
}

void GrammarBuilder::AddWords(StateId from, std::vector<std::string> words, StateId to) {
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::vector<StateId> path = {from};  // the previous word's states, by bytes matched
  absl::string_view before;
  for (const std::string& word : words) {
    size_t shared = 0;
    while (shared < std::min(before.size(), word.size()) && before[shared] == word[shared]) {
      ++shared;
    }
    path.resize(shared + 1);
    for (size_t i = shared; i < word.size(); ++i) {
      path.push_back(AfterLiteral(path.back(), absl::string_view(word).substr(i, 1)));
    }
    AddEmpty(path.back(), to);
    before = word;
  }
}

void GrammarBuilder::AddSet(StateId from, const CharSet& set, Spelling spelling, StateId to) {
  if (spelling == Spelling::kPlain) return AddCodePoint(from, set, to);
  const CharSet escaped({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  AddCodePoint(from, set.Intersection(escaped.Complement()), to);
  const CharSet to_escape = set.Intersection(escaped);
  if (to_escape.empty()) return;
  for (const CharRange& range : to_escape.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      const char escape = ShortEscape(c);
      const char hex[] = "0123456789abcdef";
      const std::string spelled = escape != 0
                                      ? std::string{'\\', escape}
                                      : std::string{'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
      AddEmpty(AfterLiteral(from, spelled), to);
    }
  }
}

void GrammarBuilder::AddAutomaton(StateId from, const CharDfa& dfa, Spelling spelling, StateId to) {
  if (dfa.states.empty()) return;
  std::vector<StateId> states(dfa.states.size());
  for (StateId& state : states) state = NewState();
  AddEmpty(from, states[0]);
  // Many edges share few distinct (set, target) pairs, so each pair is written once.
  absl::flat_hash_map<std::pair<CharSet, StateId>, StateId> shared;
  for (size_t i = 0; i < states.size(); ++i) {
    if (dfa.states[i].accept) AddEmpty(states[i], to);
    for (const CharDfa::Edge& edge : dfa.states[i].edges) {
      const StateId target = states[static_cast<size_t>(edge.target)];
      if (edge.set.ranges().size() == 1 && edge.set.ranges()[0].high < 0x80) {
        AddSet(states[i], edge.set, spelling, target);
        continue;
      }
      budget_.Spend(edge.set.ranges().size());
      const auto [it, fresh] = shared.emplace(std::pair(edge.set, target), 0);
      if (fresh) {
        it->second = NewState();
        AddSet(it->second, edge.set, spelling, target);
      }
      AddEmpty(states[i], it->second);
      if (full_) return;
    }
  }
}

}  // namespace tandem::guided
