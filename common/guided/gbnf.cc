// Implements AddGbnf (common/guided/compile.h): grammars in GBNF, llama.cpp's dialect of EBNF.
//   root ::= "yes" | "no" | [a-z]+ (item ","){1,3}   # comment
// Literals and classes know \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH; `.` is any code point.
// %json {…} is a value of that JSON Schema, an object, which llama.cpp does not know.
// A rule ends at the end of a line that is not inside parentheses, unless | follows or precedes.
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/guided/compile.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::guided {
namespace {

constexpr int kDepthMax = 200;
constexpr size_t kRulesMax = 20000;
constexpr int32_t kGbnfRepeatMax = 10000;

class GbnfParser {
 public:
  GbnfParser(absl::string_view text, GrammarBuilder& builder) : text_(text), builder_(builder) {}

  absl::StatusOr<RuleId> Parse() {
    if (!model::tokenizer_internal::IsValidUtf8(text_)) return Error("not valid UTF-8");
    for (SkipSpace(/*lines=*/true); at_ < text_.size(); SkipSpace(true)) {
      RETURN_IF_ERROR(ParseRule());
    }
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined) {
        return absl::InvalidArgumentError(
            absl::StrCat("grammar: rule ", Shown(name), " is used and not defined"));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      return absl::InvalidArgumentError("grammar: no rule root, where an answer begins");
    }
    return root->second.id;
  }

 private:
  struct NamedRule {
    RuleId id = -1;
    bool defined = false;
  };

  absl::Status Error(absl::string_view what) const {
    size_t line = 1;
    for (const char c : text_.substr(0, at_)) line += c == '\n' ? 1 : 0;
    return absl::InvalidArgumentError(absl::StrCat("grammar: line ", line, ": ", what));
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(absl::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void SkipSpace(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string Name() {
    const size_t begin = at_;
    while (absl::ascii_isalnum(static_cast<unsigned char>(Peek())) || Peek() == '-' ||
           Peek() == '_') {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  absl::StatusOr<NamedRule*> RuleNamed(const std::string& name) {
    const auto [it, fresh] = rules_.try_emplace(name);
    if (fresh) {
      if (rules_.size() > kRulesMax) return Error(absl::StrCat("more than ", kRulesMax, " rules"));
      it->second.id = builder_.NewRule(Shown(name));
    }
    return &it->second;
  }

  absl::Status ParseRule() {
    const std::string name = Name();
    if (name.empty()) return Error("expected a rule's name");
    SkipSpace(false);
    if (!Take("::=")) return Error(absl::StrCat("expected ::= after ", Shown(name)));
    ASSIGN_OR_RETURN(NamedRule * rule, RuleNamed(name));
    if (rule->defined) return Error(absl::StrCat("rule ", Shown(name), " is defined twice"));
    rule->defined = true;
    SkipSpace(true);
    RETURN_IF_ERROR(Alternatives(builder_.start(rule->id), builder_.end(rule->id), 0));
    if (at_ < text_.size() && Peek() != '\n' && Peek() != '\r') {
      return Error(absl::StrCat("unexpected ", text_.substr(at_, 1), " in rule ", Shown(name)));
    }
    return builder_.status();
  }

  absl::Status Alternatives(StateId from, StateId to, int depth) {
    if (depth > kDepthMax) return Error(absl::StrCat("groups nest deeper than ", kDepthMax));
    while (true) {
      ASSIGN_OR_RETURN(const StateId end, Sequence(from, depth));
      builder_.AddEmpty(end, to);
      // An alternative may continue on the next line.
      const size_t here = at_;
      SkipSpace(true);
      if (!Take("|")) {
        if (depth == 0) at_ = here;
        return absl::OkStatus();
      }
      SkipSpace(true);
    }
  }

  absl::StatusOr<StateId> Sequence(StateId from, int depth) {
    while (true) {
      SkipSpace(/*lines=*/depth > 0);
      const char c = Peek();
      if (c != '"' && c != '[' && c != '(' && c != '.' && c != '<' && c != '%' &&
          !absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') {
        return from;
      }
      // Each element is a rule of its own until the parser knows how often it may occur.
      const size_t before = at_;
      const StateId element_from = builder_.NewState(), element_to = builder_.NewState();
      RETURN_IF_ERROR(Element(element_from, element_to, depth));
      SkipSpace(depth > 0);
      int32_t min = 1, max = 1;
      ASSIGN_OR_RETURN(const bool repeated, Repetition(min, max));
      if (!repeated) {
        builder_.AddEmpty(from, element_from);
        from = element_to;
      } else {
        const RuleId body = builder_.NewRule(absl::StrCat("repetition at byte ", before));
        builder_.AddEmpty(builder_.start(body), element_from);
        builder_.AddEmpty(element_to, builder_.end(body));
        from = Repeat(from, body, min, max);
      }
      RETURN_IF_ERROR(builder_.status());
    }
  }

  StateId Repeat(StateId from, RuleId body, int32_t min, int32_t max) {
    for (int32_t i = 0; i < min; ++i) from = builder_.AfterCall(from, body);
    const StateId end = builder_.NewState();
    if (max == kUnbounded) {
      const StateId loop = builder_.NewState();
      builder_.AddEmpty(from, loop);
      builder_.AddCall(loop, body, loop);
      builder_.AddEmpty(loop, end);
      return end;
    }
    builder_.AddEmpty(from, end);
    for (int32_t i = min; i < max; ++i) {
      from = builder_.AfterCall(from, body);
      builder_.AddEmpty(from, end);
    }
    return end;
  }

  absl::StatusOr<bool> Repetition(int32_t& min, int32_t& max) {
    if (Take("*")) {
      min = 0, max = kUnbounded;
    } else if (Take("+")) {
      max = kUnbounded;
    } else if (Take("?")) {
      min = 0;
    } else if (Take("{")) {
      const std::optional<int32_t> low = Number();
      SkipSpace(false);
      const bool comma = Take(",");
      SkipSpace(false);
      const std::optional<int32_t> high = Number();
      SkipSpace(false);
      if (!Take("}") || (!low.has_value() && !high.has_value())) {
        return Error("expected {n}, {n,} or {n,m}");
      }
      min = low.value_or(0);
      max = comma ? high.value_or(kUnbounded) : min;
      if (min > kGbnfRepeatMax || max > kGbnfRepeatMax) {
        return Error(absl::StrCat("a repetition of more than ", kGbnfRepeatMax));
      }
      if (max != kUnbounded && max < min)
        return Error("{n,m}: the maximum is less than the minimum");
    } else {
      return false;
    }
    if (Peek() == '*' || Peek() == '+' || Peek() == '?' || Peek() == '{') {
      return Error("a repetition of a repetition needs parentheses");
    }
    return true;
  }

  std::optional<int32_t> Number() {
    const size_t begin = at_;
    int32_t value = 0;
    for (; absl::ascii_isdigit(static_cast<unsigned char>(Peek())); ++at_) {
      value = std::min(value * 10 + (Peek() - '0'), kGbnfRepeatMax + 1);
    }
    return at_ == begin ? std::nullopt : std::optional<int32_t>(value);
  }

  absl::Status Element(StateId from, StateId to, int depth) {
    if (Take("\"")) return Literal(from, to);
    if (Take("[")) return Class(from, to);
    if (Take(".")) {
      builder_.AddCodePoint(from, CharSet::All(), to);
      return absl::OkStatus();
    }
    if (Take("(")) {
      SkipSpace(true);
      RETURN_IF_ERROR(Alternatives(from, to, depth + 1));
      SkipSpace(true);
      return Take(")") ? absl::OkStatus() : Error("a group has no )");
    }
    if (Take("%json")) return Schema(from, to);
    if (Peek() == '%') return Error("expected %json after %");
    if (Peek() == '<') return Error("token references (<...>) are not supported");
    ASSIGN_OR_RETURN(const NamedRule* rule, RuleNamed(Name()));
    builder_.AddCall(from, rule->id, to);
    return absl::OkStatus();
  }

  absl::Status Literal(StateId from, StateId to) {
    std::string bytes;
    while (!Take("\"")) {
      if (at_ >= text_.size()) return Error("a literal has no closing quote");
      ASSIGN_OR_RETURN(const uint32_t c, Character());
      model::tokenizer_internal::AppendUtf8(c, &bytes);
    }
    builder_.AddEmpty(builder_.AfterLiteral(from, bytes), to);
    return absl::OkStatus();
  }

  absl::Status Schema(StateId from, StateId to) {
    SkipSpace(/*lines=*/true);
    const absl::string_view schema = text_.substr(at_, JsonObjectSize(text_.substr(at_)));
    if (schema.empty()) return Error("expected a JSON Schema as an object after %json");
    // Its errors name the place in the schema. The grammar may be the router's (tools beside a
    // form).
    ASSIGN_OR_RETURN(const RuleId rule, AddJsonSchema(schema, builder_));
    at_ += schema.size();
    builder_.AddCall(from, rule, to);
    return absl::OkStatus();
  }

  absl::Status Class(StateId from, StateId to) {
    const bool negated = Take("^");
    std::vector<CharRange> ranges;
    while (!Take("]")) {
      if (at_ >= text_.size()) return Error("a class has no ]");
      ASSIGN_OR_RETURN(const uint32_t low, Character());
      uint32_t high = low;
      if (Peek() == '-' && text_.substr(at_, 2) != "-]") {
        ++at_;
        ASSIGN_OR_RETURN(high, Character());
        if (high < low) return Error("a range in a class must run upwards");
      }
      ranges.push_back({low, high});
    }
    const CharSet set(std::move(ranges));
    builder_.AddCodePoint(from, negated ? set.Complement() : set, to);
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Character() {
    if (at_ >= text_.size()) return Error("unexpected end");
    if (!Take("\\")) {
      int length = 0;
      const uint32_t c = model::tokenizer_internal::DecodeUtf8(text_.data() + at_, &length);
      at_ += static_cast<size_t>(length);
      return c;
    }
    const char c = Peek();
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return static_cast<uint32_t>(c);
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      default:
        return Error(absl::StrCat("escape \\", std::string(1, c), " is not supported"));
    }
  }

  absl::StatusOr<uint32_t> Hex(int digits) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(Peek()))) {
        return Error(absl::StrCat("expected ", digits, " hexadecimal digits"));
      }
      const char c = absl::ascii_tolower(static_cast<unsigned char>(Peek()));
      value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (value > kCodePointMax || (value >= 0xD800 && value <= 0xDFFF)) {
      return Error("no such code point");
    }
    return static_cast<uint32_t>(value);
  }

  const absl::string_view text_;
  GrammarBuilder& builder_;
  size_t at_ = 0;
  std::map<std::string, NamedRule> rules_;
};

}  // namespace

absl::StatusOr<RuleId> AddGbnf(absl::string_view grammar, GrammarBuilder& builder) {
  return GbnfParser(grammar, builder).Parse();
}

}  // namespace tandem::guided
