// Implements Generator::AddObject (common/guided/json_schema/generator.h): the rules of objects,
// that is which members they have, in which order, and how many.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/json_schema/generator.h"

namespace tandem::guided::json_schema {
namespace {

// The schemas of a member that no layer names, and whose name matches the patterns `matched`.
Conjunction SchemasOfOther(const Flat& flat, const std::set<absl::string_view>& matched) {
  Conjunction schemas;
  for (const ObjectLayer& layer : flat.objects) {
    bool any = false;
    for (const ObjectLayer::Pattern& pattern : layer.patterns) {
      if (matched.count(pattern.text) == 0) continue;
      schemas.push_back(pattern.schema);
      any = true;
    }
    if (!any && layer.additional != nullptr) schemas.push_back(layer.additional);
  }
  return schemas;
}

}  // namespace

struct Generator::Member {
  absl::string_view name;
  bool required = false;
  RuleId rule = -1;  // "name": value
};

absl::Status Generator::AddObject(StateId from, const Flat& flat, StateId to) {
  std::optional<CharDfa> names;
  if (!flat.property_names.empty()) {
    ASSIGN_OR_RETURN(names, Strings(flat.property_names));
  }
  const CharDfa* const allowed = names.has_value() ? &*names : nullptr;
  ASSIGN_OR_RETURN(const std::vector<Member> named, NamedMembers(flat, allowed));
  // Each required name is among the named members, unless propertyNames forbids it.
  const auto required = std::count_if(named.begin(), named.end(),
                                      [](const Member& member) { return member.required; });
  if (required < std::ssize(flat.required)) return absl::OkStatus();  // no object satisfies this
  ASSIGN_OR_RETURN(const std::vector<RuleId> others, OtherMembers(flat, named, allowed));
  RETURN_IF_ERROR(CheckCounts(flat, named, !others.empty()));
  AddMembers(from, flat, named, others, to);
  return absl::OkStatus();
}

absl::StatusOr<RuleId> Generator::MemberRule(RuleId key, const Conjunction& schemas) {
  ASSIGN_OR_RETURN(const RuleId value, RuleFor(schemas));
  const RuleId rule = builder_.NewRule("member");
  const StateId colon = builder_.AfterLiteral(builder_.AfterCall(builder_.start(rule), key), ":");
  const StateId spaced = builder_.NewState();
  builder_.AddEmpty(colon, spaced);
  builder_.AddBytes(colon, ' ', ' ', spaced);
  builder_.AddCall(spaced, value, builder_.end(rule));
  return rule;
}

// The members that `properties` names, in its order, then the required ones that it does not name.
absl::StatusOr<std::vector<Generator::Member>> Generator::NamedMembers(const Flat& flat,
                                                                       const CharDfa* allowed) {
  CompileBudget& budget = builder_.budget();
  std::vector<absl::string_view> order;
  absl::flat_hash_set<absl::string_view> seen;
  for (const ObjectLayer& layer : flat.objects) {
    if (layer.properties == nullptr) continue;
    // For OtherMembers, too, which follows.
    if (!budget.Spend(2 * layer.properties->size())) return budget.status();
    for (const auto& [name, schema] : layer.properties->items()) {
      if (seen.insert(name).second) order.push_back(name);
    }
  }
  if (!budget.Spend(2 * flat.required.size())) return budget.status();
  const absl::flat_hash_set<absl::string_view> required(flat.required.begin(), flat.required.end());
  for (const absl::string_view name : flat.required) {
    if (seen.insert(name).second) order.push_back(name);
  }
  if (order.size() > kPropertiesMax) {
    return absl::InvalidArgumentError(absl::StrCat("json_schema: properties: ", order.size(),
                                                   ", expected at most ", kPropertiesMax));
  }
  std::vector<Member> members;
  for (const absl::string_view name : order) {
    if (allowed != nullptr) {
      ASSIGN_OR_RETURN(const bool matches, allowed->Matches(name, budget));
      if (!matches) continue;
    }
    const RuleId key = builder_.NewRule("key");
    AddQuoted(builder_.start(key), {std::string(name)}, builder_.end(key));
    ASSIGN_OR_RETURN(const Conjunction schemas, flat.SchemasFor(name, budget));
    ASSIGN_OR_RETURN(const RuleId rule, MemberRule(key, schemas));
    members.push_back({name, required.contains(name), rule});
  }
  return members;
}

// The keys that match those of `patterns` whose bit is set in `subset`, and no other of them.
absl::StatusOr<CharDfa> Generator::KeysOf(const CharDfa& free,
                                          const std::map<absl::string_view, SharedDfa>& patterns,
                                          size_t subset) {
  CharDfa keys = free;
  size_t bit = 0;
  for (const auto& [text, dfa] : patterns) {
    if (((subset >> bit++) & 1) != 0) {
      ASSIGN_OR_RETURN(keys, Intersect(keys, *dfa, builder_.budget()));
    } else {
      ASSIGN_OR_RETURN(const CharDfa others, Complement(*dfa, builder_.budget()));
      ASSIGN_OR_RETURN(keys, Intersect(keys, others, builder_.budget()));
    }
  }
  return keys;
}

// Members with other names: one rule for each set of patterns that a name can match. Empty when no
// schema allows other members.
absl::StatusOr<std::vector<RuleId>> Generator::OtherMembers(const Flat& flat,
                                                            const std::vector<Member>& named,
                                                            const CharDfa* allowed) {
  CompileBudget& budget = builder_.budget();
  std::map<absl::string_view, SharedDfa> patterns;
  std::set<std::string> names;
  for (const ObjectLayer& layer : flat.objects) {
    for (const ObjectLayer::Pattern& pattern : layer.patterns) {
      patterns.emplace(pattern.text, pattern.dfa);
    }
    if (layer.properties == nullptr) continue;
    for (const auto& [name, schema] : layer.properties->items()) names.insert(name);
  }
  for (const Member& member : named) names.emplace(member.name);
  if (patterns.size() > kPatternsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: patternProperties: ", patterns.size(),
                     " patterns on one object, expected at most ", kPatternsMax));
  }
  ASSIGN_OR_RETURN(const CharDfa named_keys,
                   WordsDfa(std::vector<std::string>(names.begin(), names.end()), budget));
  ASSIGN_OR_RETURN(CharDfa free, Complement(named_keys, budget));
  if (allowed != nullptr) {
    ASSIGN_OR_RETURN(free, Intersect(free, *allowed, budget));
  }
  std::vector<RuleId> rules;
  for (size_t subset = 0; subset < size_t{1} << patterns.size(); ++subset) {
    ASSIGN_OR_RETURN(const CharDfa keys, KeysOf(free, patterns, subset));
    std::set<absl::string_view> matched;
    size_t bit = 0;
    for (const auto& [text, dfa] : patterns) {
      if (((subset >> bit++) & 1) != 0) matched.insert(text);
    }
    const Conjunction schemas = SchemasOfOther(flat, matched);
    const bool none = std::any_of(schemas.begin(), schemas.end(), [](const Json* schema) {
      return schema->is_boolean() && !schema->get<bool>();
    });
    if (none || keys.Empty()) continue;
    RuleId key = FreeString();
    if (!names.empty() || !patterns.empty() || allowed != nullptr) {
      key = builder_.NewRule("key");
      const StateId end = builder_.NewState();
      builder_.AddAutomaton(builder_.AfterLiteral(builder_.start(key), "\""), keys,
                            GrammarBuilder::Spelling::kJsonString, end);
      builder_.AddBytes(end, '"', '"', builder_.end(key));
    }
    ASSIGN_OR_RETURN(const RuleId rule, MemberRule(key, schemas));
    rules.push_back(rule);
  }
  return rules;
}

// Other members may repeat a name, so they do not count towards a minimum.
absl::Status Generator::CheckCounts(const Flat& flat, const std::vector<Member>& named,
                                    bool others) const {
  const auto required = std::count_if(named.begin(), named.end(),
                                      [](const Member& member) { return member.required; });
  if (others && flat.num_properties.min > std::max<int64_t>(1, required)) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: minProperties: ", flat.num_properties.min,
                     " is not supported where names are not listed in properties"));
  }
  const int64_t cap = std::max<int64_t>({1, flat.num_properties.min, flat.num_properties.max});
  if (static_cast<int64_t>(named.size()) * cap > static_cast<int64_t>(kGrammarStatesMax) / 4) {
    return absl::InvalidArgumentError(
        "json_schema: maxProperties: too many combinations of properties and counts");
  }
  return absl::OkStatus();
}

// Connects by one of `rules`, which `before` members precede.
void Generator::MemberStep(StateId from, int64_t before, const std::vector<RuleId>& rules,
                           StateId to) {
  if (before > 0) from = AfterSpace(builder_.AfterLiteral(from, ","));
  for (const RuleId rule : rules) builder_.AddCall(from, rule, to);
}

// Builds a grid of states: how many of the named members were passed, and how many members were
// written (as far as the count matters; one suffices to know that a comma must follow).
void Generator::AddMembers(StateId from, const Flat& flat, const std::vector<Member>& named,
                           const std::vector<RuleId>& others, StateId to) {
  const CountRange& counts = flat.num_properties;
  const bool bounded = counts.max != kUnbounded;
  const int64_t cap = bounded ? counts.max : std::max<int64_t>(1, counts.min);
  const auto columns =
      static_cast<size_t>(std::min<int64_t>(
          cap, bounded && others.empty() ? static_cast<int64_t>(named.size()) : cap)) +
      1;
  std::vector<StateId> row(columns);
  for (StateId& state : row) state = builder_.NewState();
  builder_.AddEmpty(AfterSpace(builder_.AfterLiteral(from, "{")), row[0]);
  const auto written = [&](size_t column) { return std::min(column + 1, columns - 1); };
  for (const Member& member : named) {
    std::vector<StateId> next(columns);
    for (StateId& state : next) state = builder_.NewState();
    for (size_t c = 0; c < columns; ++c) {
      if (!bounded || c + 1 < columns) {
        MemberStep(row[c], static_cast<int64_t>(c), {member.rule}, next[written(c)]);
      }
      if (!member.required) builder_.AddEmpty(row[c], next[c]);
    }
    row = std::move(next);
  }
  const StateId close = builder_.NewState();
  builder_.AddBytes(close, '}', '}', to);
  for (size_t c = 0; c < columns; ++c) {
    if (!others.empty() && (!bounded || c + 1 < columns)) {
      MemberStep(row[c], static_cast<int64_t>(c), others, row[written(c)]);
    }
    if (static_cast<int64_t>(c) >= counts.min) {
      builder_.AddEmpty(c == 0 ? row[c] : AfterSpace(row[c]), close);
    }
  }
}

absl::StatusOr<CharDfa> Generator::Strings(const Conjunction& schemas) {
  ASSIGN_OR_RETURN(const std::vector<Flat> alternatives, flattener_.Flatten(schemas));
  CompileBudget& budget = builder_.budget();
  // Of what no alternative allows: so far everything.
  ASSIGN_OR_RETURN(CharDfa none, Complement(CharDfa(), budget));
  for (const Flat& flat : alternatives) {
    if ((flat.types & kString) == 0) continue;
    ASSIGN_OR_RETURN(CharDfa dfa, LengthDfa(flat.length.min, flat.length.max, budget));
    for (const SharedDfa& text : flat.texts) {
      ASSIGN_OR_RETURN(dfa, Intersect(dfa, *text, budget));
    }
    if (flat.values.has_value()) {
      std::vector<std::string> words;
      for (const Json* value : *flat.values) {
        if (value->is_string()) words.push_back(value->get<std::string>());
      }
      ASSIGN_OR_RETURN(const CharDfa listed, WordsDfa(words, budget));
      ASSIGN_OR_RETURN(dfa, Intersect(dfa, listed, budget));
    }
    ASSIGN_OR_RETURN(const CharDfa others, Complement(dfa, budget));
    ASSIGN_OR_RETURN(none, Intersect(none, others, budget));
  }
  return Complement(none, budget);
}

}  // namespace tandem::guided::json_schema
