// Writes the grammar rules of the JSON values that satisfy schemas.
//
// A value can be written in many ways; these are generated. Members come in the order of
// `properties`, then the required members that it does not name, then others. White space is empty,
// one space, or a line break with indentation, and stands only after { [ , : and before } ]. Whole
// numbers have no fraction. Strings that a pattern, a length with a pattern, an enum or a key
// constrains use the shortest escapes.
// Thread safety: none; one thread uses a Generator.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/guided/grammar_builder.h"
#include "common/guided/json_schema/flatten.h"

namespace tandem::guided::json_schema {

inline constexpr size_t kRulesMax = 20000;

class Generator {
 public:
  // `flattener` and `builder` outlive the Generator.
  Generator(Flattener& flattener, GrammarBuilder& builder)
      : flattener_(flattener), builder_(builder) {}

  // Writes, and returns, the rule of the values that satisfy all of `schemas`. Errors:
  // kInvalidArgument, as Flattener::Flatten, and when a bound is exceeded.
  absl::StatusOr<RuleId> Generate(const Conjunction& schemas);

 private:
  // Returns the rule of `schemas`. Its body may be written later, so recursion ends here.
  absl::StatusOr<RuleId> RuleFor(Conjunction schemas);
  absl::Status AddFlat(StateId from, const Flat& flat, StateId to);
  absl::Status AddString(StateId from, const Flat& flat, StateId to);
  absl::Status AddNumber(StateId from, const Flat& flat, StateId to);
  absl::Status AddArray(StateId from, const Flat& flat, StateId to);
  // Connects by any of `values`; AddStructure by one array or object.
  void AddLiteralValues(StateId from, const std::vector<const Json*>& values, StateId to);
  void AddStructure(StateId from, const Json& value, StateId to);

  RuleId WhiteSpace();  // around brackets and after commas
  RuleId JsonCharacter();
  RuleId FreeString();
  RuleId FreeNumber(bool integers_only);
  void AddJsonCharacter(StateId from, StateId to);
  // Connects by any of `texts`, between quotes.
  void AddQuoted(StateId from, const std::vector<std::string>& texts, StateId to);
  // Connects `from` to a new state by white space, after a bracket or comma or before a bracket.
  StateId AfterSpace(StateId from) { return builder_.AfterCall(from, WhiteSpace()); }

  // Objects (object_rules.cc).
  struct Member;
  absl::Status AddObject(StateId from, const Flat& flat, StateId to);
  absl::StatusOr<std::vector<Member>> NamedMembers(const Flat& flat, const CharDfa* names);
  absl::StatusOr<CharDfa> KeysOf(const CharDfa& free,
                                 const std::map<absl::string_view, SharedDfa>& patterns,
                                 size_t subset);
  absl::StatusOr<std::vector<RuleId>> OtherMembers(const Flat& flat,
                                                   const std::vector<Member>& named,
                                                   const CharDfa* names);
  absl::Status CheckCounts(const Flat& flat, const std::vector<Member>& named, bool others) const;
  void AddMembers(StateId from, const Flat& flat, const std::vector<Member>& named,
                  const std::vector<RuleId>& others, StateId to);
  void MemberStep(StateId from, int64_t before, const std::vector<RuleId>& rules, StateId to);
  absl::StatusOr<RuleId> MemberRule(RuleId key, const Conjunction& schemas);
  // The strings that satisfy `schemas`.
  absl::StatusOr<CharDfa> Strings(const Conjunction& schemas);

  Flattener& flattener_;
  GrammarBuilder& builder_;
  std::map<Conjunction, RuleId> rules_;
  std::vector<std::pair<Conjunction, RuleId>> todo_;
  std::map<std::string, RuleId> shared_;
};

}  // namespace tandem::guided::json_schema
