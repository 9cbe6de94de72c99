#include "common/model/tokenizer/onig_pattern.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

constexpr int kClassDepthMax = 16;

// The members of Oniguruma's sets, as PCRE2 writes them within a class.
constexpr absl::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr absl::string_view kHexDigit = "0-9A-Fa-f";
// Letters, marks, digits and connectors; besides, what Unicode calls alphabetic of other classes.
constexpr absl::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
// These count as \w where it stands outside of classes, and at \b.
constexpr absl::string_view kWordOutside = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

// The set that `letter` stands for behind a backslash, in lower case; empty if it is none.
absl::string_view SetOf(char letter) {
  switch (absl::ascii_tolower(static_cast<unsigned char>(letter))) {
    case 's':
      return kSpace;
    case 'w':
      return kWord;
    case 'h':
      return kHexDigit;
    case 'd':
      return R"(\p{Nd})";
    default:
      return "";
  }
}

// A class that is read: the operands of && that are complete, and the parts of the one that is not.
struct ClassParts {
  std::vector<std::string> operands;
  std::string members;            // of a class of PCRE2
  std::vector<std::string> sets;  // expressions that match one character each

  // The expression for one operand, which becomes complete.
  bool Complete() {
    if (members.empty() && sets.empty()) return false;
    if (!members.empty()) sets.insert(sets.begin(), absl::StrCat("[", members, "]"));
    // Atomic: only one of the sets is tried again for a character.
    std::string text = sets.size() == 1 ? sets[0] : "(?>";
    for (size_t i = 0; sets.size() > 1 && i < sets.size(); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : "|", sets[i]);
    }
    if (sets.size() > 1) text.push_back(')');
    operands.push_back(std::move(text));
    members.clear();
    sets.clear();
    return true;
  }
};

class Rewriter {
 public:
  explicit Rewriter(absl::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Rewrite() {
    while (at_ < pattern_.size()) RETURN_IF_ERROR(Next());
    return std::move(out_);
  }

 private:
  absl::Status Unsupported(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("pattern \"", pattern_, "\" at offset ", at_, ": ",
                                                 what, " is not supported"));
  }
  bool NextIs(absl::string_view text) const {
    return absl::StartsWith(pattern_.substr(std::min(at_, pattern_.size())), text);
  }
  // The character at the place reached, which is taken.
  absl::string_view TakeCharacter() {
    const absl::string_view character = pattern_.substr(at_, Utf8Length(pattern_[at_]));
    at_ += character.size();
    return character;
  }
  void AddAtom(absl::string_view text) {
    atom_begin_ = out_.size();
    absl::StrAppend(&out_, text);
    begins_group_ = false;
  }

  absl::Status Next() {
    switch (pattern_[at_]) {
      case '\\':
        return TakeEscape();
      case '[': {
        ASSIGN_OR_RETURN(const std::string set, TakeClass(0));
        AddAtom(set);
        return absl::OkStatus();
      }
      case '(':
        return TakeGroup();
      case ')':
        out_.push_back(')');
        ++at_;
        if (!group_begins_.empty()) {
          atom_begin_ = group_begins_.back();
          group_begins_.pop_back();
        }
        begins_group_ = false;
        return absl::OkStatus();
      case '{':
        return TakeInterval();
      case '*':
      case '+':
      case '?':
        out_.push_back(pattern_[at_++]);
        return absl::OkStatus();
      default:
        AddAtom(TakeCharacter());
        return absl::OkStatus();
    }
  }

  // An escaped character or set outside of classes.
  absl::Status TakeEscape() {
    if (at_ + 1 == pattern_.size()) return Unsupported("a backslash at the end");
    const char letter = pattern_[at_ + 1];
    if (letter == 'b' || letter == 'B') {
      const std::string word = absl::StrCat("[", kWord, kWordOutside, "])");
      const absl::string_view after = letter == 'b' ? "(?!" : "(?=";
      const absl::string_view otherwise = letter == 'b' ? "(?=" : "(?!";
      AddAtom(absl::StrCat("(?:(?<=", word, after, word, "|(?<!", word, otherwise, word, ")"));
      at_ += 2;
      return absl::OkStatus();
    }
    if (const absl::string_view set = SetOf(letter); !set.empty()) {
      const bool negated = absl::ascii_isupper(static_cast<unsigned char>(letter));
      AddAtom(absl::StrCat(negated ? "[^" : "[", set, set == kWord ? kWordOutside : "", "]"));
      at_ += 2;
      return absl::OkStatus();
    }
    // Back references, calls, and what matches no single character.
    if (absl::string_view("123456789AzZGKRXkg").find(letter) != absl::string_view::npos) {
      AddAtom(pattern_.substr(at_, 2));
      at_ += 2;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const std::string escape, TakeCharacterEscape());
    AddAtom(escape);
    return absl::OkStatus();
  }

  // An escape of a character or a property, which means the same within a class and outside.
  absl::StatusOr<std::string> TakeCharacterEscape() {
    const size_t begin = at_;
    const char letter = pattern_[begin + 1];
    if (!absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
      ++at_;
      return absl::StrCat("\\", TakeCharacter());
    }
    if (absl::string_view("nrtfae").find(letter) != absl::string_view::npos) {
      at_ += 2;
      return std::string(pattern_.substr(begin, 2));
    }
    if (letter == 'v') {
      at_ += 2;
      return std::string("\\x{B}");
    }
    const bool braced = pattern_.substr(begin + 2, 1) == "{";
    if ((letter == 'p' || letter == 'P' || letter == 'x') && braced) {
      const size_t end = pattern_.find('}', begin);
      if (end == absl::string_view::npos) return Unsupported("an escape without a closing brace");
      at_ = end + 1;
      return std::string(pattern_.substr(begin, at_ - begin));
    }
    uint32_t value = 0;
    const absl::string_view digits = pattern_.substr(begin + 2, letter == 'u' ? 4 : 2);
    const bool is_number =
        (letter == 'u' && digits.size() == 4) || (letter == 'x' && digits.size() == 2);
    // Two digits of more than ASCII are one byte of a character.
    if (is_number && absl::SimpleHexAtoi(digits, &value) && (letter == 'u' || value < 0x80)) {
      at_ = begin + 2 + digits.size();
      return absl::StrCat("\\x{", digits, "}");
    }
    return Unsupported(absl::StrCat("the escape \\", std::string(1, letter)));
  }

  absl::Status TakeGroup() {
    if (NextIs("(*")) return Unsupported("(*");
    const bool plain = !NextIs("(?");
    const bool named = NextIs("(?<") && !NextIs("(?<=") && !NextIs("(?<!");
    size_t length = plain ? 1 : named ? 3 : 0;
    for (const absl::string_view begin : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
      if (NextIs(begin)) length = begin.size();
    }
    if (length == 0) return TakeFlags();
    if (named) length = std::min(pattern_.find('>', at_), pattern_.size() - 1) + 1 - at_;
    OpenGroup(pattern_.substr(at_, length));
    at_ += length;
    return absl::OkStatus();
  }

  void OpenGroup(absl::string_view text) {
    group_begins_.push_back(out_.size());
    absl::StrAppend(&out_, text);
    begins_group_ = true;
  }

  // (?i), (?m:...) and their like. Ruby's m is s in PCRE2.
  absl::Status TakeFlags() {
    const size_t end = pattern_.find_first_of(":)", at_);
    if (end == absl::string_view::npos) return Unsupported("a group without end");
    std::string flags = "(?";
    for (const char c : pattern_.substr(at_ + 2, end - at_ - 2)) {
      if (c != 'i' && c != 'm' && c != '-') {
        return Unsupported(absl::StrCat("the group ", pattern_.substr(at_, end + 1 - at_)));
      }
      flags.push_back(c == 'm' ? 's' : c);
    }
    flags.push_back(pattern_[end]);
    if (pattern_[end] == ':') {
      OpenGroup(flags);
    } else if (begins_group_) {
      absl::StrAppend(&out_, flags);
    } else {
      // In Ruby it makes a group of all that follows, alternatives included.
      return Unsupported(absl::StrCat(flags, " within a group"));
    }
    at_ = end + 1;
    return absl::OkStatus();
  }

  // {n}, {n,}, {,m} or {n,m}; anything else is text.
  absl::Status TakeInterval() {
    const size_t end = pattern_.find('}', at_);
    const absl::string_view inner =
        end == absl::string_view::npos ? "" : pattern_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = inner.find(',');
    const absl::string_view low = inner.substr(0, comma);
    const absl::string_view high = comma < inner.size() ? inner.substr(comma + 1) : "";
    const auto is_number = [](absl::string_view text) {
      return text.find_first_not_of("0123456789") == absl::string_view::npos;
    };
    if (low.size() + high.size() == 0 || !is_number(low) || !is_number(high)) {
      AddAtom("\\{");
      ++at_;
      return absl::OkStatus();
    }
    absl::StrAppend(&out_, "{", low.empty() ? "0" : low);
    if (comma != absl::string_view::npos) absl::StrAppend(&out_, ",", high);
    out_.push_back('}');
    at_ = end + 1;
    // No possessive interval, and none of one number that takes few: the sign repeats it again.
    const bool exact = comma == absl::string_view::npos;
    if (NextIs("*") || NextIs("+") || NextIs("{") || (exact && NextIs("?"))) {
      if (NextIs("++") || NextIs("+?")) return Unsupported("an interval with two signs behind it");
      out_.insert(atom_begin_, "(?:");
      out_.push_back(')');
    }
    return absl::OkStatus();
  }

  // A class, as an expression that matches one character. PCRE2 has no classes in classes and no
  // intersections, so these become groups and lookaheads.
  absl::StatusOr<std::string> TakeClass(int depth) {
    if (depth == kClassDepthMax) return Unsupported("a class nested this deep");
    ++at_;
    const bool negated = NextIs("^");
    at_ += negated ? 1 : 0;
    ClassParts parts;
    for (bool first = true; first || !NextIs("]"); first = false) {
      if (at_ >= pattern_.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("pattern \"", pattern_, "\": expected ']' at the end of a class"));
      }
      RETURN_IF_ERROR(TakeMember(depth, parts));
    }
    ++at_;
    if (parts.operands.empty() && parts.sets.empty()) {
      return absl::StrCat(negated ? "[^" : "[", parts.members, "]");
    }
    if (!parts.Complete()) return Unsupported("an intersection with nothing");
    std::string text;
    for (size_t i = 0; i + 1 < parts.operands.size(); ++i) {
      absl::StrAppend(&text, "(?=", parts.operands[i], ")");
    }
    absl::StrAppend(&text, parts.operands.back());
    return negated ? absl::StrCat("(?:(?!", text, ")(?s:.))") : absl::StrCat("(?:", text, ")");
  }

  absl::Status TakeMember(int depth, ClassParts& parts) {
    if (NextIs("&&")) {
      if (!parts.Complete()) return Unsupported("an intersection with nothing");
      at_ += 2;
      return absl::OkStatus();
    }
    if (NextIs("[:")) return TakeNamedSet(parts);
    if (NextIs("[")) {
      ASSIGN_OR_RETURN(std::string set, TakeClass(depth + 1));
      parts.sets.push_back(std::move(set));
      return absl::OkStatus();
    }
    if (NextIs("\\") && at_ + 1 < pattern_.size()) {
      const char letter = pattern_[at_ + 1];
      if (const absl::string_view set = SetOf(letter); !set.empty()) {
        at_ += 2;
        if (absl::ascii_islower(static_cast<unsigned char>(letter))) {
          absl::StrAppend(&parts.members, set);
        } else {
          parts.sets.push_back(absl::StrCat("[^", set, "]"));
        }
        return absl::OkStatus();
      }
    }
    const bool is_property = NextIs("\\p") || NextIs("\\P");
    ASSIGN_OR_RETURN(const std::string from, TakeClassCharacter());
    absl::StrAppend(&parts.members, from);
    if (is_property || !NextIs("-") || NextIs("-]")) return absl::OkStatus();
    ++at_;
    if (NextIs("[") || NextIs("&&") || NextIs("\\p") || NextIs("\\P") ||
        (NextIs("\\") && at_ + 1 < pattern_.size() && !SetOf(pattern_[at_ + 1]).empty())) {
      return Unsupported("a range to something that is no character");
    }
    if (at_ >= pattern_.size()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string to, TakeClassCharacter());
    absl::StrAppend(&parts.members, "-", to);
    return absl::OkStatus();
  }

  // One character of a class, or a property, spelt so that it is nothing else wherever it stands.
  absl::StatusOr<std::string> TakeClassCharacter() {
    if (NextIs("\\b")) {
      at_ += 2;
      return std::string("\\x{8}");
    }
    if (NextIs("\\")) {
      if (at_ + 1 == pattern_.size()) return Unsupported("a backslash at the end");
      return TakeCharacterEscape();
    }
    const absl::string_view character = TakeCharacter();
    const bool is_sign = absl::ascii_ispunct(static_cast<unsigned char>(character[0]));
    return absl::StrCat(is_sign ? "\\" : "", character);
  }

  // [:space:] and its like.
  absl::Status TakeNamedSet(ClassParts& parts) {
    const std::pair<absl::string_view, absl::string_view> kSets[] = {
        {"[:alpha:]", R"(\p{Alphabetic})"},
        {"[:alnum:]", R"(\p{Alphabetic}\p{Nd})"},
        {"[:digit:]", R"(\p{Nd})"},
        {"[:lower:]", R"(\p{Lowercase})"},
        {"[:upper:]", R"(\p{Uppercase})"},
        {"[:space:]", kSpace},
        {"[:word:]", kWord},
        {"[:xdigit:]", kHexDigit}};
    for (const auto& [name, members] : kSets) {
      if (!NextIs(name)) continue;
      absl::StrAppend(&parts.members, members);
      at_ += name.size();
      return absl::OkStatus();
    }
    return Unsupported("a set of this name");
  }

  const absl::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_begin_ = 0;             // of out_: what a sign of repetition repeats
  std::vector<size_t> group_begins_;  // of out_: the groups that are open
  bool begins_group_ = true;          // nothing but flags since the innermost group began
};

}  // namespace

absl::StatusOr<std::string> PatternOfOniguruma(absl::string_view pattern) {
  return Rewriter(pattern).Rewrite();
}

}  // namespace tandem::model::tokenizer_internal
