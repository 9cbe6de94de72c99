#include "common/guided/json_schema/generator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/compile.h"

namespace tandem::guided::json_schema {
namespace {

constexpr int kIndentMax = 40;  // white space after a line break

// How a number, a truth value or null is written.
std::string PlainText(const Json& value) {
  if (value.is_number_float()) {
    const auto decimal = ToDecimal(value);
    if (decimal.ok() && decimal->fraction.empty())
      return absl::StrCat(decimal->negative ? "-" : "", decimal->whole);
  }
  return value.dump();
}

CharSet HexDigits() { return CharSet({{'0', '9'}, {'a', 'f'}, {'A', 'F'}}); }

}  // namespace

absl::StatusOr<RuleId> Generator::Generate(const Conjunction& schemas) {
  ASSIGN_OR_RETURN(const RuleId root, RuleFor(schemas));
  while (!todo_.empty()) {
    const auto [conjunction, rule] = std::move(todo_.back());
    todo_.pop_back();
    ASSIGN_OR_RETURN(const std::vector<Flat> alternatives, flattener_.Flatten(conjunction));
    for (const Flat& flat : alternatives) {
      RETURN_IF_ERROR(AddFlat(builder_.start(rule), flat, builder_.end(rule)));
      RETURN_IF_ERROR(builder_.status());
    }
  }
  return root;
}

absl::StatusOr<RuleId> Generator::RuleFor(Conjunction schemas) {
  if (!builder_.budget().Spend(1 + schemas.size())) return builder_.budget().status();
  std::sort(schemas.begin(), schemas.end());
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  const auto [it, fresh] = rules_.emplace(schemas, -1);
  if (!fresh) return it->second;
  if (rules_.size() > kRulesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("json_schema: needs more than ", kRulesMax, " rules"));
  }
  // No message names it: a value begins with a byte, so its rule is not left-recursive.
  it->second = builder_.NewRule("value");
  todo_.push_back({schemas, it->second});
  return it->second;
}

absl::Status Generator::AddFlat(StateId from, const Flat& flat, StateId to) {
  if (flat.values.has_value()) {
    if (!builder_.budget().Spend(flat.Size())) return builder_.budget().status();
    Flat rest = flat;  // what the listed values must satisfy, too
    rest.values.reset();
    std::vector<const Json*> values;
    for (const Json* value : *flat.values) {
      ASSIGN_OR_RETURN(const bool valid, flattener_.Validates(rest, *value));
      if (valid) values.push_back(value);
    }
    AddLiteralValues(from, values, to);
    return absl::OkStatus();
  }
  if ((flat.types & kNull) != 0) builder_.AddEmpty(builder_.AfterLiteral(from, "null"), to);
  if ((flat.types & kBoolean) != 0) builder_.AddWords(from, {"true", "false"}, to);
  if ((flat.types & kString) != 0) RETURN_IF_ERROR(AddString(from, flat, to));
  if ((flat.types & kNumber) != 0) RETURN_IF_ERROR(AddNumber(from, flat, to));
  if ((flat.types & kArray) != 0) RETURN_IF_ERROR(AddArray(from, flat, to));
  if ((flat.types & kObject) != 0) RETURN_IF_ERROR(AddObject(from, flat, to));
  return absl::OkStatus();
}

// ---- strings

// One code point in every form that a JSON string allows, escapes included; surrogates only in
// pairs.
void Generator::AddJsonCharacter(StateId from, StateId to) {
  const CharSet special({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  builder_.AddCodePoint(from, special.Complement(), to);
  const StateId escape = builder_.AfterLiteral(from, "\\");
  builder_.AddCodePoint(escape,
                        CharSet({{'"', '"'},
                                 {'\\', '\\'},
                                 {'/', '/'},
                                 {'b', 'b'},
                                 {'f', 'f'},
                                 {'n', 'n'},
                                 {'r', 'r'},
                                 {'t', 't'}}),
                        to);
  const StateId unicode = builder_.AfterLiteral(escape, "u");
  const auto hex = [&](StateId at, const CharSet& digits) {
    const StateId next = builder_.NewState();
    builder_.AddCodePoint(at, digits, next);
    return next;
  };
  const CharSet d({{'d', 'd'}, {'D', 'D'}});
  const CharSet not_d = HexDigits().Intersection(d.Complement());
  const StateId plain = builder_.NewState();  // two hexadecimal digits follow
  builder_.AddCodePoint(hex(unicode, not_d), HexDigits(), plain);
  const StateId after_d = hex(unicode, d);
  builder_.AddCodePoint(after_d, CharSet::Of('0', '7'), plain);
  builder_.AddCodePoint(hex(plain, HexDigits()), HexDigits(), to);
  StateId pair = hex(after_d, CharSet({{'8', '9'}, {'a', 'b'}, {'A', 'B'}}));
  pair = builder_.AfterLiteral(hex(hex(pair, HexDigits()), HexDigits()), "\\u");
  pair = hex(hex(pair, d), CharSet({{'c', 'f'}, {'C', 'F'}}));
  builder_.AddCodePoint(hex(pair, HexDigits()), HexDigits(), to);
}

RuleId Generator::JsonCharacter() {
  const auto [it, fresh] = shared_.emplace("character", -1);
  if (fresh) {
    it->second = builder_.NewRule("character");
    AddJsonCharacter(builder_.start(it->second), builder_.end(it->second));
  }
  return it->second;
}

RuleId Generator::FreeString() {
  const auto [it, fresh] = shared_.emplace("string", -1);
  if (fresh) {
    it->second = builder_.NewRule("string");
    const StateId inside = builder_.AfterLiteral(builder_.start(it->second), "\"");
    AddJsonCharacter(inside, inside);
    builder_.AddBytes(inside, '"', '"', builder_.end(it->second));
  }
  return it->second;
}

absl::Status Generator::AddString(StateId from, const Flat& flat, StateId to) {
  const CountRange& length = flat.length;
  if (length.max != kUnbounded && length.max < length.min) return absl::OkStatus();
  if (flat.texts.empty() && length.min == 0 && length.max == kUnbounded) {
    builder_.AddCall(from, FreeString(), to);
    return absl::OkStatus();
  }
  StateId at = builder_.AfterLiteral(from, "\"");
  const StateId end = builder_.NewState();
  builder_.AddBytes(end, '"', '"', to);
  if (!flat.texts.empty()) {
    ASSIGN_OR_RETURN(CharDfa dfa, LengthDfa(length.min, length.max, builder_.budget()));
    for (const SharedDfa& text : flat.texts) {
      ASSIGN_OR_RETURN(dfa, Intersect(dfa, *text, builder_.budget()));
    }
    builder_.AddAutomaton(at, dfa, GrammarBuilder::Spelling::kJsonString, end);
    return absl::OkStatus();
  }
  const RuleId character = JsonCharacter();
  for (int64_t i = 0; i < length.min; ++i) at = builder_.AfterCall(at, character);
  builder_.AddEmpty(at, end);
  if (length.max == kUnbounded) {
    builder_.AddCall(at, character, at);
    return absl::OkStatus();
  }
  for (int64_t i = length.min; i < length.max; ++i) {
    at = builder_.AfterCall(at, character);
    builder_.AddEmpty(at, end);
  }
  return absl::OkStatus();
}

void Generator::AddQuoted(StateId from, const std::vector<std::string>& texts, StateId to) {
  const absl::StatusOr<CharDfa> words = WordsDfa(texts, builder_.budget());
  if (!words.ok()) return;  // the budget is exceeded: builder_.status() says so
  const StateId end = builder_.NewState();
  builder_.AddAutomaton(builder_.AfterLiteral(from, "\""), *words,
                        GrammarBuilder::Spelling::kJsonString, end);
  builder_.AddBytes(end, '"', '"', to);
}

// ---- numbers

RuleId Generator::FreeNumber(bool integers_only) {
  const auto [it, fresh] = shared_.emplace(integers_only ? "integer" : "number", -1);
  if (!fresh) return it->second;
  // Readers keep no more digits: 18 fit a 64-bit integer, 17 a double.
  const auto rule = AddRegex(integers_only ? "0|-?[1-9][0-9]{0,17}"
                                           : "-?(0|[1-9][0-9]{0,16})(\\.[0-9]{1,17})?"
                                             "([eE][+-]?[0-9]{1,2})?",
                             builder_);
  it->second = *rule;
  return it->second;
}

absl::Status Generator::AddNumber(StateId from, const Flat& flat, StateId to) {
  const bool integers_only = (flat.types & kFraction) == 0;
  if (flat.numbers.Unbounded()) {
    builder_.AddCall(from, FreeNumber(integers_only), to);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const CharDfa dfa, NumberDfa(flat.numbers, integers_only, builder_.budget()));
  builder_.AddAutomaton(from, dfa, GrammarBuilder::Spelling::kPlain, to);
  return absl::OkStatus();
}

// ---- arrays, and values given whole

RuleId Generator::WhiteSpace() {
  const auto [it, fresh] = shared_.emplace("white space", -1);
  if (!fresh) return it->second;
  const RuleId rule = it->second = builder_.NewRule("white space");
  const StateId end = builder_.end(rule);
  builder_.AddEmpty(builder_.start(rule), end);
  builder_.AddBytes(builder_.start(rule), ' ', ' ', end);
  StateId at = builder_.AfterLiteral(builder_.start(rule), "\n");
  for (int i = 0; i < kIndentMax; ++i) {
    builder_.AddEmpty(at, end);
    const StateId next = builder_.NewState();
    builder_.AddBytes(at, ' ', ' ', next);
    builder_.AddBytes(at, '\t', '\t', next);
    at = next;
  }
  builder_.AddEmpty(at, end);
  return rule;
}

absl::Status Generator::AddArray(StateId from, const Flat& flat, StateId to) {
  const CountRange& count = flat.items;
  if (count.max != kUnbounded && count.max < count.min) return absl::OkStatus();
  size_t prefix = 0;
  for (const ArrayLayer& layer : flat.arrays) prefix = std::max(prefix, layer.prefix.size());
  const auto item_rule = [&](size_t index) -> absl::StatusOr<RuleId> {
    Conjunction schemas;
    for (const ArrayLayer& layer : flat.arrays) {
      if (const Json* schema = layer.SchemaFor(index); schema != nullptr) schemas.push_back(schema);
    }
    return RuleFor(std::move(schemas));
  };
  const auto distinct = std::max<int64_t>(static_cast<int64_t>(prefix), count.min);
  const int64_t last = count.max == kUnbounded ? distinct : count.max;
  const StateId close = builder_.NewState();
  builder_.AddBytes(close, ']', ']', to);
  StateId at = AfterSpace(builder_.AfterLiteral(from, "["));
  if (count.min == 0) builder_.AddEmpty(at, close);
  for (int64_t i = 0; i < last; ++i) {
    ASSIGN_OR_RETURN(const RuleId item, item_rule(static_cast<size_t>(i)));
    at = builder_.AfterCall(i == 0 ? at : AfterSpace(builder_.AfterLiteral(at, ",")), item);
    if (i + 1 >= count.min) builder_.AddEmpty(AfterSpace(at), close);
  }
  if (count.max != kUnbounded) return absl::OkStatus();
  ASSIGN_OR_RETURN(const RuleId item, item_rule(prefix));
  if (last == 0) {
    at = builder_.AfterCall(at, item);
    builder_.AddEmpty(AfterSpace(at), close);
  }
  builder_.AddCall(AfterSpace(builder_.AfterLiteral(at, ",")), item, at);
  return absl::OkStatus();
}

// The values share the states of common beginnings: one after the other, a thousand words would be
// a thousand readings of each text.
void Generator::AddLiteralValues(StateId from, const std::vector<const Json*>& values, StateId to) {
  std::vector<std::string> texts, plain;
  for (const Json* value : values) {
    if (value->is_string()) {
      texts.push_back(value->get<std::string>());
    } else if (value->is_structured()) {
      AddStructure(from, *value, to);
    } else {
      plain.push_back(PlainText(*value));
    }
  }
  if (!texts.empty()) AddQuoted(from, texts, to);
  if (!plain.empty()) builder_.AddWords(from, std::move(plain), to);
}

void Generator::AddStructure(StateId from, const Json& value, StateId to) {
  const bool object = value.is_object();
  StateId at = AfterSpace(builder_.AfterLiteral(from, object ? "{" : "["));
  bool first = true;
  for (const auto& [key, member] : value.items()) {
    if (!first) at = AfterSpace(builder_.AfterLiteral(at, ","));
    first = false;
    if (object) {
      const StateId named = builder_.NewState();
      AddQuoted(at, {key}, named);
      at = AfterSpace(builder_.AfterLiteral(named, ":"));
    }
    const StateId next = builder_.NewState();
    AddLiteralValues(at, {&member}, next);
    at = next;
  }
  if (!first) at = AfterSpace(at);
  builder_.AddEmpty(builder_.AfterLiteral(at, object ? "}" : "]"), to);
}

}  // namespace tandem::guided::json_schema

namespace tandem::guided {

absl::StatusOr<RuleId> AddJsonSchema(absl::string_view schema, GrammarBuilder& builder) {
  ASSIGN_OR_RETURN(const auto document, json_schema::Document::Parse(schema, builder.budget()));
  json_schema::Flattener flattener(*document, builder.budget());
  return json_schema::Generator(flattener, builder).Generate({&document->root()});
}

}  // namespace tandem::guided
