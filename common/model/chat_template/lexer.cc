#include "common/model/chat_template/lexer.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/text.h"

namespace tandem::model::chat_template {
namespace {

bool IsNameStart(char c) {
  return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80) != 0;
}
bool IsNamePart(char c) {
  return IsNameStart(c) || absl::ascii_isdigit(static_cast<unsigned char>(c));
}
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// Normalises a template's source as jinja2 does: line ends become \n, and one newline at the end is
// dropped.
std::string NormaliseNewlines(absl::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (absl::EndsWith(out, "\n")) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(DataAndTag());
    Add(Token::Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  absl::string_view Rest() const { return source_.substr(at_); }
  bool StartsWith(absl::string_view prefix) const { return absl::StartsWith(Rest(), prefix); }

  void Advance(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                    source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }
  void SkipSpace() {
    while (at_ < source_.size() && IsSpace(DecodeCodePoint(Rest()))) {
      Advance(CodePointBytes(Rest()));
    }
  }
  Token& Add(Token::Kind kind, std::string text = "") {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.line = line_;
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }
  void AddData(absl::string_view text, int line) {
    if (text.empty()) return;
    Add(Token::Kind::kData, std::string(text)).line = line;
  }

  // Returns the part of `text`, which precedes a tag, that white-space control keeps. `sign` is the
  // tag's `-`, `+` or neither.
  absl::string_view BeforeTag(absl::string_view text, char sign, bool is_variable) const {
    if (sign == '-') return Strip(text, {.left = false});
    if (sign == '+' || is_variable) return text;
    const size_t newline = text.rfind('\n');
    if (newline == absl::string_view::npos && !line_starting_) return text;
    const absl::string_view tail =
        newline == absl::string_view::npos ? text : text.substr(newline + 1);
    if (!Strip(tail, {}).empty()) return text;
    return text.substr(0, text.size() - tail.size());
  }

  // The next tag's position at or after at_; the source's end when there is none.
  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      const char next = source_[i + 1];
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return source_.size();
  }

  absl::Status DataAndTag() {
    const size_t tag = FindTag();
    const int data_line = line_;
    const absl::string_view text = source_.substr(at_, tag - at_);
    if (tag == source_.size()) {
      Advance(text.size());
      AddData(text, data_line);
      return absl::OkStatus();
    }
    const char type = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = after == '-' || after == '+' ? after : '\0';
    AddData(BeforeTag(text, sign, type == '{'), data_line);
    Advance(text.size() + 2);
    if (sign != '\0') Advance(1);
    if (type == '#') return Comment();
    if (type == '%' && IsRaw()) return Raw();
    return TagBody(type == '{');
  }

  // After a tag's closing brace.
  void AfterBlockEnd(char sign) {
    const size_t start = at_;
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && StartsWith("\n")) {
      Advance(1);
    }
    line_starting_ = at_ > start && source_[at_ - 1] == '\n';
  }

  absl::Status Comment() {
    const int line = line_;
    const size_t end = source_.find("#}", at_);
    if (end == absl::string_view::npos) return ErrorAt(line, "expected '#}' to close the comment");
    const char before = end > at_ ? source_[end - 1] : '\0';
    Advance(end + 2 - at_);
    AfterBlockEnd(before);
    return absl::OkStatus();
  }

  // Whether the block that opens here is `{% raw %}`.
  bool IsRaw() const {
    absl::string_view rest = Strip(Rest(), {.right = false});
    if (!absl::ConsumePrefix(&rest, "raw")) return false;
    rest = Strip(rest, {.right = false});
    return absl::StartsWith(rest, "%}") || absl::StartsWith(rest, "-%}");
  }

  absl::Status Raw() {
    const int line = line_;
    const size_t open_end = source_.find("%}", at_);
    const bool strip = source_[open_end - 1] == '-';
    Advance(open_end + 2 - at_);
    if (strip) SkipSpace();
    line_starting_ = source_[at_ - 1] == '\n';
    for (size_t i = source_.find("{%", at_); i != absl::string_view::npos;
         i = source_.find("{%", i + 2)) {
      absl::string_view rest = source_.substr(i + 2);
      const char sign = !rest.empty() && (rest[0] == '-' || rest[0] == '+') ? rest[0] : '\0';
      if (sign != '\0') rest.remove_prefix(1);
      rest = Strip(rest, {.right = false});
      if (!absl::ConsumePrefix(&rest, "endraw")) continue;
      rest = Strip(rest, {.right = false});
      const char end_sign = !rest.empty() && (rest[0] == '-' || rest[0] == '+') ? rest[0] : '\0';
      if (end_sign != '\0') rest.remove_prefix(1);
      if (!absl::ConsumePrefix(&rest, "%}")) continue;
      AddData(BeforeTag(source_.substr(at_, i - at_), sign, false), line_);
      Advance(source_.size() - rest.size() - at_);
      AfterBlockEnd(end_sign);
      return absl::OkStatus();
    }
    return ErrorAt(line, "expected 'endraw' to close the raw block");
  }

  // Whether the tag closes here; consumes its end if so.
  bool TagEnd(bool is_variable) {
    if (!open_.empty()) return false;
    const absl::string_view end = is_variable ? "}}" : "%}";
    if (StartsWith(end)) {
      Add(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd);
      Advance(2);
      if (!is_variable) {
        AfterBlockEnd('\0');
      } else {
        line_starting_ = false;
      }
      return true;
    }
    const char sign = Rest()[0];
    if ((sign != '-' && (sign != '+' || is_variable)) || !absl::StartsWith(Rest().substr(1), end)) {
      return false;
    }
    Add(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd);
    Advance(3);
    AfterBlockEnd(sign);
    return true;
  }

  absl::Status TagBody(bool is_variable) {
    const int line = line_;
    Add(is_variable ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin);
    open_.clear();
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) {
        return ErrorAt(line, absl::StrCat("expected '", is_variable ? "}}" : "%}",
                                          "' to close the tag, found the end of the template"));
      }
      if (TagEnd(is_variable)) return absl::OkStatus();
      const char c = Rest()[0];
      if (IsNameStart(c)) {
        Name();
      } else if (IsDigit(c)) {
        RETURN_IF_ERROR(Number());
      } else if (c == '\'' || c == '"') {
        RETURN_IF_ERROR(Text());
      } else {
        RETURN_IF_ERROR(Operator());
      }
    }
  }

  void Name() {
    size_t length = 1;
    while (length < Rest().size() && IsNamePart(Rest()[length])) ++length;
    Add(Token::Kind::kName, std::string(Rest().substr(0, length)));
    Advance(length);
  }

  size_t DigitsFrom(size_t i) const {
    const absl::string_view rest = Rest();
    while (i < rest.size() &&
           (IsDigit(rest[i]) || (rest[i] == '_' && i + 1 < rest.size() && IsDigit(rest[i + 1])))) {
      ++i;
    }
    return i;
  }

  // Digits of `base` after a prefix such as 0x.
  absl::Status PrefixedInteger(int base) {
    Integer value = 0;
    size_t i = 2;
    for (; i < Rest().size(); ++i) {
      const char c = Rest()[i];
      if (c == '_') continue;
      const int digit = IsDigit(c) ? c - '0'
                        : absl::ascii_isxdigit(static_cast<unsigned char>(c))
                            ? absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10
                            : base;
      if (digit >= base) break;
      if (__builtin_mul_overflow(value, static_cast<Integer>(base), &value)) {
        return ErrorAt(line_, "integer too large");
      }
      value += digit;
    }
    Add(Token::Kind::kInteger).integer = value;
    Advance(i);
    return absl::OkStatus();
  }

  absl::Status Number() {
    const absl::string_view rest = Rest();
    const char kind = rest.size() > 2 && rest[0] == '0'
                          ? absl::ascii_tolower(static_cast<unsigned char>(rest[1]))
                          : '\0';
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    if (base != 10 && absl::ascii_isxdigit(static_cast<unsigned char>(rest[2]))) {
      return PrefixedInteger(base);
    }
    const size_t whole = DigitsFrom(0);
    size_t end = whole;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && end + 1 < rest.size() && rest[end] == '.' && IsDigit(rest[end + 1])) {
      end = DigitsFrom(end + 1);
    }
    if (!after_dot && end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      const size_t sign =
          end + 1 < rest.size() && (rest[end + 1] == '+' || rest[end + 1] == '-') ? 1 : 0;
      if (end + 1 + sign < rest.size() && IsDigit(rest[end + 1 + sign])) {
        end = DigitsFrom(end + 1 + sign);
      }
    }
    std::string digits(rest.substr(0, end));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (end != whole) {
      double value = 0.0;
      if (!absl::SimpleAtod(digits, &value)) return ErrorAt(line_, "expected a number");
      Add(Token::Kind::kDouble).real = value;
    } else {
      Integer value = 0;
      for (const char digit : digits) {
        if (__builtin_mul_overflow(value, static_cast<Integer>(10), &value) ||
            __builtin_add_overflow(value, static_cast<Integer>(digit - '0'), &value)) {
          return ErrorAt(line_, "integer too large");
        }
      }
      Add(Token::Kind::kInteger).integer = value;
    }
    Advance(end);
    return absl::OkStatus();
  }

  // Appends what the escape after a backslash at body[i - 1] means; the index after it.
  static size_t Unescape(absl::string_view body, size_t i, std::string* out) {
    static constexpr absl::string_view kFrom = "\\'\"abfnrtv";
    static constexpr absl::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    const char c = body[i];
    const size_t simple = kFrom.find(c);
    if (simple != absl::string_view::npos) {
      out->push_back(kTo[simple]);
      return i + 1;
    }
    if (c == '\n') return i + 1;
    size_t digit_count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const int base = digit_count > 0 ? 16 : 8;
    size_t start = i + 1;
    if (c >= '0' && c <= '7') {
      start = i;
      while (digit_count < 3 && i + digit_count < body.size() && body[i + digit_count] >= '0' &&
             body[i + digit_count] <= '7') {
        ++digit_count;
      }
    }
    uint32_t value = 0;
    const absl::string_view digits = body.substr(std::min(start, body.size()), digit_count);
    const bool all_digits = std::all_of(digits.begin(), digits.end(),
                                        [](unsigned char d) { return absl::ascii_isxdigit(d); });
    if (digit_count > 0 && digits.size() == digit_count && all_digits) {
      for (const char d : digits) {
        value = value * static_cast<uint32_t>(base) +
                static_cast<uint32_t>(IsDigit(d) ? d - '0' : (d | 0x20) - 'a' + 10);
      }
      if (value <= 0x10ffff && (value < 0xd800 || value > 0xdfff)) {
        AppendCodePoint(value, out);
        return start + digit_count;
      }
    }
    // An unknown escape stands for itself.
    out->push_back('\\');
    out->push_back(c);
    return i + 1;
  }

  absl::Status Text() {
    const char quote = Rest()[0];
    size_t end = 1;
    while (end < Rest().size() && Rest()[end] != quote) end += Rest()[end] == '\\' ? 2 : 1;
    if (end >= Rest().size()) return ErrorAt(line_, "expected a closing quote");
    const absl::string_view body = Rest().substr(1, end - 1);
    std::string text;
    for (size_t i = 0; i < body.size();) {
      if (body[i] == '\\' && i + 1 < body.size()) {
        i = Unescape(body, i + 1, &text);
      } else {
        text.push_back(body[i++]);
      }
    }
    Add(Token::Kind::kText, std::move(text));
    Advance(end + 1);
    return absl::OkStatus();
  }

  absl::Status Operator() {
    // Longer operators first.
    static constexpr std::array<absl::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const absl::string_view op : kOperators) {
      if (!StartsWith(op)) continue;
      const size_t opening = absl::string_view("([{").find(op);
      const size_t closing = absl::string_view(")]}").find(op);
      if (op.size() == 1 && opening != absl::string_view::npos) open_.push_back(")]}"[opening]);
      if (op.size() == 1 && closing != absl::string_view::npos) {
        if (open_.empty() || open_.back() != op[0]) {
          return ErrorAt(line_,
                         absl::StrCat("unexpected '", op, "'", open_.empty() ? "" : ", expected '",
                                      open_.empty() ? "" : std::string(1, open_.back()),
                                      open_.empty() ? "" : "'"));
        }
        open_.pop_back();
      }
      Add(Token::Kind::kOperator, std::string(op));
      Advance(op.size());
      return absl::OkStatus();
    }
    return ErrorAt(line_, absl::StrCat("unexpected character ",
                                       ReprText(Rest().substr(0, CodePointBytes(Rest())))));
  }

  const absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  // Whether the last token ended with a newline, so that indentation may follow.
  bool line_starting_ = true;
  std::string open_;  // the closing brackets this tag still needs
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status ErrorAt(int line, absl::string_view message) {
  return absl::InvalidArgumentError(
      absl::StrCat("chat template line ", line, ": ", Shown(message, kShownLongBytesMax)));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  const std::string normalised = NormaliseNewlines(source);
  return Lexer(normalised).Run();
}

}  // namespace tandem::model::chat_template
