// Goal: an answer constrained by a regular expression is a text that PCRE2 matches from start to
// end, and every prefix of such a text is allowed. Random expressions and random texts, with PCRE2
// as the oracle. The parser rejects what is not regular, by name.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/guided/acceptance.h"

namespace tandem::guided {
namespace {

using ::testing::HasSubstr;
constexpr auto kRegex = request::GuidedParams::Kind::kRegex;

class PcrePattern {
 public:
  explicit PcrePattern(const std::string& pattern) {
    const std::string whole = absl::StrCat("\\A(?:", pattern, ")\\z");
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_UTF,
                          &error, &offset, nullptr);
    data_ = code_ == nullptr ? nullptr : pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~PcrePattern() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  PcrePattern(const PcrePattern&) = delete;
  PcrePattern& operator=(const PcrePattern&) = delete;

  bool valid() const { return code_ != nullptr; }
  bool Matches(const std::string& text) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_,
                       nullptr) >= 0;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
};

class RandomRegex {
 public:
  explicit RandomRegex(uint64_t seed) : random_(seed) {}

  std::string Pattern(int depth) {
    switch (depth == 0 ? Pick(4) : Pick(9)) {
      case 0:
        return std::string(1, static_cast<char>('a' + Pick(3)));
      case 1:
        return Pick(2) == 0 ? "[ab]" : "[^a]";
      case 2:
        return Pick(2) == 0 ? "\xC3\xA9" : "[\xC3\xA0-\xE4\xB8\xAD]";
      case 3:
        return Pick(3) == 0 ? "." : Pick(2) == 0 ? "\\d" : "\\w";
      case 4:
        return absl::StrCat("(?:", Pattern(depth - 1), "|", Pattern(depth - 1), ")");
      case 5:
        return absl::StrCat("(", Pattern(depth - 1), ")", Quantifier());
      case 6:
        return absl::StrCat("(?:", Pattern(depth - 1), ")", Quantifier());
      default:
        return Pattern(depth - 1) + Pattern(depth - 1);
    }
  }

  std::string Text() {
    const char* letters[] = {
        "a", "b", "c", "a", "b", "1", "_", "\n", "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80"};
    std::string text;
    for (int i = Pick(7); i > 0; --i) text += letters[Pick(11)];
    return text;
  }

 private:
  int Pick(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  std::string Quantifier() {
    const char* all[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}"};
    return all[Pick(8)];
  }
  std::mt19937_64 random_;
};

TEST(Regex, AcceptsWhatPcreMatchesFromStartToEnd) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  RandomRegex random(seed);
  int accepted = 0, texts = 0;
  for (int i = 0; i < 400; ++i) {
    const std::string pattern = random.Pattern(4);
    const PcrePattern pcre(pattern);
    ASSERT_TRUE(pcre.valid()) << pattern;
    ASSERT_OK_AND_ASSIGN(const Acceptor acceptor, Acceptor::Create(kRegex, pattern));
    for (int k = 0; k < 60; ++k) {
      const std::string text = random.Text();
      const bool matches = pcre.Matches(text);
      EXPECT_EQ(acceptor.Accepts(text), matches) << pattern << " on " << text;
      if (matches) {
        ++accepted;
        for (size_t size = 0; size <= text.size(); ++size) {
          EXPECT_TRUE(acceptor.Begins(text.substr(0, size))) << pattern << " on " << text;
        }
      }
      ++texts;
    }
  }
  std::cout << accepted << " of " << texts << " texts match\n";
  EXPECT_GT(accepted, 500);
}

TEST(Regex, AnchorsAreTolerated) {
  for (const char* pattern : {"^ab$", "\\Aab\\z", "(^a)b$", "^(?:ab|^ab$)$"}) {
    ASSERT_OK_AND_ASSIGN(const Acceptor acceptor, Acceptor::Create(kRegex, pattern));
    EXPECT_TRUE(acceptor.Accepts("ab")) << pattern;
    EXPECT_FALSE(acceptor.Accepts("abab")) << pattern;
  }
  EXPECT_THAT(Acceptor::Create(kRegex, "a^b").status().message(), HasSubstr("nothing can satisfy"));
}

TEST(Regex, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a)\\1", "backreferences"},
      {"a(?=b)", "look-around (?="},
      {"a(?!b)", "look-around (?!"},
      {"(?<=a)b", "look-around (?<="},
      {"(?<!a)b", "look-around (?<!"},
      {"\\bword", "word boundary \\b"},
      {"(?R)", "group (?R"},
      {"\\p{Greek}", "\\p{Greek}"},
      {"a{5,2}", "the maximum is less"},
      {"a{200000}", "more than 100000"},
      {"[z-a]", "from one character"},
      {"(a", "no )"},
      {"a)", "unmatched )"},
      {"[a", "no ]"},
      {"*a", "nothing to repeat"},
      {"\\", "backslash"},
      {"\xFF", "UTF-8"},
      {"(?:.{1000}){1000}", "states"},
      {"(a|b)*a(a|b){30}", "states"},
      {"\\k<x>", "backreferences"},
      {"(?>a|ab)c", "atomic groups"},
      {"a*+a", "at byte 2: possessive"},
      {"a++", "possessive"},
      {"a?+", "possessive"},
      {"a{2}+", "possessive"},
      {"a{,2}", "{,m} is not supported"},
      {"\\012", "octal escapes"},
      {"[\\07]", "octal escapes"},
      {"((((){100000}){100000}){100000}){100000}", "steps"}};
  for (const auto& [pattern, what] : cases) {
    const auto acceptor = Acceptor::Create(kRegex, pattern);
    ASSERT_FALSE(acceptor.ok()) << pattern;
    EXPECT_THAT(acceptor.status().message(), HasSubstr(what)) << pattern;
  }
}

}  // namespace
}  // namespace tandem::guided
