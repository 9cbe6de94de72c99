#include "common/guided/regex.h"

#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/unicode_class.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::guided {
namespace {

using Kind = RegexNode::Kind;

// What sorting the ranges of a class costs for each of them.
constexpr size_t kSortSteps = 4;

CharSet Digits() { return CharSet::Of('0', '9'); }
CharSet WordCharacters() { return CharSet({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}); }
// ECMA-262's WhiteSpace and LineTerminator.
CharSet Spaces() {
  return CharSet({{'\t', '\r'},
                  {' ', ' '},
                  {0xA0, 0xA0},
                  {0x1680, 0x1680},
                  {0x2000, 0x200A},
                  {0x2028, 0x2029},
                  {0x202F, 0x202F},
                  {0x205F, 0x205F},
                  {0x3000, 0x3000},
                  {0xFEFF, 0xFEFF}});
}

// All code points of a class. Looks at each of the 1.1 million code points.
CharSet ScanForClass(model::tokenizer_internal::UnicodeClass wanted) {
  std::vector<CharRange> ranges;
  for (uint32_t c = 0; c <= kCodePointMax; ++c) {
    if (model::tokenizer_internal::ClassOf(c) != wanted) continue;
    if (!ranges.empty() && ranges.back().high + 1 == c) {
      ranges.back().high = c;
    } else {
      ranges.push_back({c, c});
    }
  }
  return CharSet(std::move(ranges));
}

// Computed once in the process's life.
const CharSet& Letters() {
  static const CharSet letters = ScanForClass(model::tokenizer_internal::UnicodeClass::kLetter);
  return letters;
}
const CharSet& Numbers() {
  static const CharSet numbers = ScanForClass(model::tokenizer_internal::UnicodeClass::kNumber);
  return numbers;
}

class Parser {
 public:
  Parser(absl::string_view text, CompileBudget& budget) : text_(text), budget_(budget) {}

  absl::StatusOr<RegexNode> Parse() {
    if (text_.size() > kRegexBytesMax) {
      return Error(absl::StrCat(text_.size(), " bytes, expected at most ", kRegexBytesMax));
    }
    if (!model::tokenizer_internal::IsValidUtf8(text_)) return Error("not valid UTF-8");
    ASSIGN_OR_RETURN(RegexNode node, Alternatives(0));
    if (at_ < text_.size()) return Error("unmatched )");
    return node;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("regex: at byte ", at_, ": ", what));
  }
  bool More() const { return at_ < text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(absl::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  uint32_t TakeCodePoint() {
    int length = 0;
    const uint32_t c = model::tokenizer_internal::DecodeUtf8(text_.data() + at_, &length);
    at_ += static_cast<size_t>(length);
    return c;
  }

  RegexNode Set(CharSet set) {
    budget_.Spend(ignore_case_ ? 1 + set.ranges().size() : 1);
    return {.kind = Kind::kSet, .set = ignore_case_ ? set.FoldAsciiCase() : std::move(set)};
  }

  absl::StatusOr<RegexNode> Alternatives(int depth) {
    if (depth > kRegexDepthMax) {
      return Error(absl::StrCat("groups nest deeper than ", kRegexDepthMax));
    }
    RegexNode all{.kind = Kind::kAlternatives};
    do {
      ASSIGN_OR_RETURN(RegexNode one, Sequence(depth));
      all.children.push_back(std::move(one));
    } while (Take("|"));
    if (all.children.size() > 1) return all;
    RegexNode only = std::move(all.children[0]);
    return only;
  }

  absl::StatusOr<RegexNode> Sequence(int depth) {
    RegexNode all{.kind = Kind::kSequence};
    while (More() && Peek() != '|' && Peek() != ')') {
      RETURN_IF_ERROR(budget_.status());
      ASSIGN_OR_RETURN(RegexNode one, Atom(depth));
      ASSIGN_OR_RETURN(one, Quantified(std::move(one)));
      all.children.push_back(std::move(one));
    }
    return all;
  }

  absl::StatusOr<RegexNode> Quantified(RegexNode node) {
    while (More()) {
      int32_t min = 0, max = kUnbounded;
      if (Take("*")) {
      } else if (Take("+")) {
        min = 1;
      } else if (Take("?")) {
        max = 1;
      } else if (Peek() == '{') {
        ASSIGN_OR_RETURN(const bool is_count, Count(min, max));
        if (!is_count) return node;
      } else {
        return node;
      }
      if (!Take("?") && Peek() == '+') {
        return Error("possessive quantifiers (a + after *, +, ? or {}) are not supported");
      }
      RegexNode repeat{.kind = Kind::kRepeat, .min = min, .max = max};
      repeat.children.push_back(std::move(node));
      node = std::move(repeat);
      if (++quantifiers_ > 10000) return Error("more than 10000 quantifiers");
    }
    return node;
  }

  // Reads {n}, {n,} or {n,m}. False, and nothing is read, when the brace begins none of them. PCRE
  // and Python read {,m} as {0,m}, RE2 and ECMA-262 as text.
  absl::StatusOr<bool> Count(int32_t& min, int32_t& max) {
    const size_t start = at_++;
    const std::optional<int64_t> low = Number();
    const bool comma = Take(",");
    const std::optional<int64_t> high = Number();
    if (!Take("}") || (!low.has_value() && !(comma && high.has_value()))) {
      at_ = start;
      return false;
    }
    if (!low.has_value()) return Error("{,m} is not supported; {0,m} is");
    const int64_t first = *low;
    const int64_t last = comma ? high.value_or(kUnbounded) : first;
    if (first > kRepeatMax || last > kRepeatMax) {
      return Error(absl::StrCat("a repetition of more than ", kRepeatMax));
    }
    if (last != kUnbounded && last < first) {
      return Error(absl::StrCat("{", first, ",", last, "}: the maximum is less than the minimum"));
    }
    min = static_cast<int32_t>(first);
    max = static_cast<int32_t>(last);
    return true;
  }

  std::optional<int64_t> Number() {
    int64_t value = 0;
    const size_t start = at_;
    for (; absl::ascii_isdigit(Peek()); ++at_) {
      value = std::min<int64_t>(value * 10 + (Peek() - '0'), int64_t{1} << 40);
    }
    return at_ == start ? std::nullopt : std::optional<int64_t>(value);
  }

  absl::StatusOr<RegexNode> Atom(int depth) {
    switch (Peek()) {
      case '(':
        return Group(depth);
      case '[':
        return Class();
      case '\\':
        return Escape();
      case '*':
      case '+':
      case '?':
        return Error(absl::StrCat("nothing to repeat before ", text_.substr(at_, 1)));
      case '.':
        ++at_;
        return RegexNode{.kind = Kind::kSet, .set = CharSet({{'\n', '\n'}}).Complement()};
      case '^':
        ++at_;
        return RegexNode{.kind = Kind::kBegin};
      case '$':
        ++at_;
        return RegexNode{.kind = Kind::kEnd};
      default: {
        const uint32_t c = TakeCodePoint();
        return Set(CharSet::Of(c, c));
      }
    }
  }

  absl::Status GroupKind() {
    for (const char* look : {"?=", "?!", "?<=", "?<!"}) {
      if (Take(look)) return Error(absl::StrCat("look-around (", look, " is not supported"));
    }
    if (Take("?>")) return Error("atomic groups (?> are not supported");
    if (Take("?:")) return absl::OkStatus();
    if (Take("?i:")) {
      ignore_case_ = true;
      return absl::OkStatus();
    }
    if (Take("?P<") || Take("?<") || Take("?'")) {
      while (absl::ascii_isalnum(Peek()) || Peek() == '_') ++at_;
      if (!Take(">") && !Take("'")) return Error("a group's name has no end");
      return absl::OkStatus();
    }
    if (Peek() == '?') {
      return Error(absl::StrCat("group (", text_.substr(at_, 2), " is not supported"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RegexNode> Group(int depth) {
    ++at_;
    if (Take("?i)")) {
      ignore_case_ = true;
      return RegexNode{.kind = Kind::kEmpty};
    }
    const bool outer_case = ignore_case_;
    RETURN_IF_ERROR(GroupKind());
    ASSIGN_OR_RETURN(RegexNode node, Alternatives(depth + 1));
    if (!Take(")")) return Error("a group has no )");
    ignore_case_ = outer_case;
    return node;
  }

  absl::StatusOr<RegexNode> Escape() {
    const char next = Peek(1);
    if (next >= '1' && next <= '9') return Error("backreferences are not supported");
    if (next == 'k' || next == 'g') return Error("backreferences are not supported");
    if (next == 'b' || next == 'B') {
      return Error(absl::StrCat("word boundary \\", std::string(1, next), " is not supported"));
    }
    if (next == 'A') {
      at_ += 2;
      return RegexNode{.kind = Kind::kBegin};
    }
    if (next == 'z' || next == 'Z') {
      at_ += 2;
      return RegexNode{.kind = Kind::kEnd};
    }
    ASSIGN_OR_RETURN(CharSet set, EscapedSet(/*in_class=*/false));
    return Set(std::move(set));
  }

  // The set that an escape stands for: a class or one code point.
  absl::StatusOr<CharSet> EscapedSet(bool in_class) {
    ++at_;
    if (!More()) return Error("a backslash ends the pattern");
    const uint32_t c = TakeCodePoint();
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordCharacters();
      case 'W':
        return WordCharacters().Complement();
      case 's':
        return Spaces();
      case 'S':
        return Spaces().Complement();
      case 'p':
      case 'P': {
        ASSIGN_OR_RETURN(const CharSet set, Property());
        if (c == 'p') return set;
        budget_.Spend(set.ranges().size());
        return set.Complement();
      }
      default:
        break;
    }
    ASSIGN_OR_RETURN(const uint32_t one, EscapedCodePoint(c, in_class));
    return CharSet::Of(one, one);
  }

  absl::StatusOr<uint32_t> EscapedCodePoint(uint32_t c, bool in_class) {
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case '0':
        if (absl::ascii_isdigit(Peek())) {
          return Error("octal escapes are not supported; \\xHH and \\uHHHH are");
        }
        return 0;
      case 'b':
        if (in_class) return '\b';
        break;
      case 'c': {
        const char letter = Peek();
        if (!absl::ascii_isalpha(letter)) return Error("\\c needs a letter");
        ++at_;
        return static_cast<uint32_t>(letter) & 0x1F;
      }
      case 'x':
        return Take("{") ? Hex(1, 8, "}") : Hex(2, 2, "");
      case 'u':
        return Take("{") ? Hex(1, 8, "}") : Utf16Escape();
      default:
        break;
    }
    if (c < 0x80 && absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      return Error(
          absl::StrCat("escape \\", std::string(1, static_cast<char>(c)), " is not supported"));
    }
    return c;
  }

  absl::StatusOr<uint32_t> Utf16Escape() {
    ASSIGN_OR_RETURN(const uint32_t first, Hex(4, 4, "", /*surrogates=*/true));
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first > 0xDBFF || !Take("\\u")) return Error("a lone surrogate");
    ASSIGN_OR_RETURN(const uint32_t second, Hex(4, 4, "", /*surrogates=*/true));
    if (second < 0xDC00 || second > 0xDFFF) return Error("a lone surrogate");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  absl::StatusOr<uint32_t> Hex(int digits_min, int digits_max, absl::string_view end,
                               bool surrogates = false) {
    uint64_t value = 0;
    int digits = 0;
    for (; digits < digits_max && absl::ascii_isxdigit(Peek()); ++digits, ++at_) {
      const char c = absl::ascii_tolower(Peek());
      value = value * 16 + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (digits < digits_min || !Take(end)) return Error("malformed hexadecimal escape");
    if (value > kCodePointMax || (!surrogates && value >= 0xD800 && value <= 0xDFFF)) {
      return Error("no such code point");
    }
    return static_cast<uint32_t>(value);
  }

  absl::StatusOr<CharSet> Property() {
    std::string name;
    if (Take("{")) {
      while (More() && Peek() != '}') name.push_back(text_[at_++]);
      if (!Take("}")) return Error("\\p{ has no }");
    } else if (More()) {
      name.push_back(text_[at_++]);
    }
    if (name == "L" || name == "Letter") return Letters();
    if (name == "N" || name == "Number") return Numbers();
    if (name == "Nd" || name == "digit") {
      return Error("\\p{Nd} is not supported; \\d and \\p{N} are");
    }
    return Error(absl::StrCat("\\p{", Shown(name), "} is not supported; \\p{L} and \\p{N} are"));
  }

  absl::StatusOr<CharSet> ClassItem() {
    if (Peek() == '\\') return EscapedSet(/*in_class=*/true);
    if (text_.substr(at_, 2) == "[:") return PosixClass();
    const uint32_t c = TakeCodePoint();
    return CharSet::Of(c, c);
  }

  absl::StatusOr<CharSet> PosixClass() {
    const struct {
      absl::string_view name;
      CharSet set;
    } classes[] = {
        {"[:alpha:]", CharSet({{'A', 'Z'}, {'a', 'z'}})},
        {"[:digit:]", Digits()},
        {"[:alnum:]", CharSet({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}})},
        {"[:upper:]", CharSet::Of('A', 'Z')},
        {"[:lower:]", CharSet::Of('a', 'z')},
        {"[:space:]", CharSet({{'\t', '\r'}, {' ', ' '}})},
        {"[:xdigit:]", CharSet({{'0', '9'}, {'A', 'F'}, {'a', 'f'}})},
        {"[:word:]", WordCharacters()},
        {"[:punct:]", CharSet({{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}})},
    };
    for (const auto& known : classes) {
      if (Take(known.name)) return known.set;
    }
    return Error("this [:class:] is not supported");
  }

  absl::StatusOr<RegexNode> Class() {
    ++at_;
    const bool negated = Take("^");
    std::vector<CharRange> ranges;
    bool first = true;
    while (first || Peek() != ']') {
      if (!More()) return Error("a class has no ]");
      // ECMA-262 reads [] as the empty class; POSIX and RE2 read a first ] as itself.
      first = false;
      ASSIGN_OR_RETURN(const CharSet low, ClassItem());
      budget_.Spend(kSortSteps * low.ranges().size());
      RETURN_IF_ERROR(budget_.status());
      const bool single = low.ranges().size() == 1 && low.ranges()[0].low == low.ranges()[0].high;
      if (single && Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        ASSIGN_OR_RETURN(const CharSet high, ClassItem());
        if (high.ranges().size() != 1 || high.ranges()[0].low != high.ranges()[0].high ||
            high.ranges()[0].low < low.ranges()[0].low) {
          return Error("a range in a class must run from one character up to another");
        }
        ranges.push_back({low.ranges()[0].low, high.ranges()[0].low});
      } else {
        ranges.insert(ranges.end(), low.ranges().begin(), low.ranges().end());
      }
    }
    ++at_;
    CharSet set(std::move(ranges));
    if (ignore_case_) set = set.FoldAsciiCase();
    return RegexNode{.kind = Kind::kSet, .set = negated ? set.Complement() : std::move(set)};
  }

  const absl::string_view text_;
  CompileBudget& budget_;
  size_t at_ = 0;
  bool ignore_case_ = false;
  int quantifiers_ = 0;
};

}  // namespace

absl::StatusOr<RegexNode> ParseRegex(absl::string_view pattern, CompileBudget& budget) {
  return Parser(pattern, budget).Parse();
}

}  // namespace tandem::guided
