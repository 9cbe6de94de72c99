// Goal: each hand-written scanner cuts text exactly where the pattern it stands for does, on random
// text dense in what the patterns tell apart and on every line of the golden corpus. Patterns are
// read as Hugging Face reads them, or refused.
#include "common/model/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/model/tokenizer/pre_tokenizer.h"
#include "common/model/tokenizer/utf8.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model::tokenizer_internal {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

using Words = std::vector<absl::string_view>;

struct Family {
  const char* name;
  ScannerKind kind;
  absl::string_view pattern;
  bool digits_first;
};

Words Scan(ScannerKind kind, absl::string_view text) {
  const ScanWordFn scan = WordScannerOf(kind);
  Words words;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const word_end = scan(p, end);
    words.emplace_back(p, word_end - p);
    p = word_end;
  }
  return words;
}

// The same by the general steps. The list has a step that does nothing, so that it is not
// recognised as the scanner's.
PreTokenizer ByPattern(const Family& family) {
  std::vector<PreTokenizerStep> steps;
  if (family.digits_first) {
    PreTokenizerStep digits{PreTokenizerStep::Kind::kDigits};
    digits.individual_digits = true;
    steps.push_back(digits);
  }
  PreTokenizerStep split{PreTokenizerStep::Kind::kSplitRegex};
  split.regex = std::make_shared<const RegexSplitter>(*RegexSplitter::Create(family.pattern));
  steps.push_back(split);
  return PreTokenizer(steps);
}

std::string RandomText(std::mt19937* random) {
  static const char* const kUnits[] = {
      " ",      "  ", "\n",     "\r\n",   "\t",     "a",    "Zb",     "é",
      "ſ",      "'",  "'s",     "'S",     "'Re",    "'ll",  "'ſ",     "1",
      "23",     "٣",  "½",      "中",     "文字",   ".",    "!?",     "=",
      "—",      "😀",  "\u00a0", "\u3000", "\u2028", "\x1c", "\u0301", "\u0e34",
      "\u200d", "_",  "\u180e", "\u0085", "\v"};
  std::string text;
  const int units = 1 + (*random)() % 14;
  for (int i = 0; i < units; ++i) text += kUnits[(*random)() % std::size(kUnits)];
  return text;
}

class WordScanner : public ::testing::TestWithParam<Family> {};

TEST_P(WordScanner, EqualsItsPattern) {
  const PreTokenizer by_pattern = ByPattern(GetParam());
  ASSERT_EQ(by_pattern.scanner(), ScannerKind::kNone);
  const auto check = [&](absl::string_view text) {
    std::deque<std::string> arena;
    Words expected;
    by_pattern.Apply(text, true, &arena, &expected);
    ASSERT_EQ(Scan(GetParam().kind, text), expected) << absl::CHexEscape(text);
  };
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  for (int i = 0; i < 30000 && !HasFatalFailure(); ++i) check(RandomText(&random));
  for (const std::string& line : ReadCorpus()) {
    if (HasFatalFailure()) return;
    if (!line.empty() && IsValidUtf8(line)) check(line);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, WordScanner,
    ::testing::Values(Family{"gpt2", ScannerKind::kGpt2, kGpt2Pattern, false},
                      Family{"smollm", ScannerKind::kSmollm, kGpt2Pattern, true},
                      Family{"llama3", ScannerKind::kLlama3, kLlama3Pattern, false},
                      Family{"qwen2", ScannerKind::kQwen2, kQwen2Pattern, false}),
    [](const auto& info) { return std::string(info.param.name); });

// The first alternative tries the run at each of its ends.
TEST(RegexSplitter, WordsAreCutBehindALongRunOfWhiteSpace) {
  ASSERT_OK_AND_ASSIGN(const RegexSplitter splitter,
                       RegexSplitter::Create(R"(\s*[\r\n]+|\s+(?!\S)| ?\S+|\s+)"));
  for (const size_t run : {size_t{10}, size_t{3'000'000}}) {
    std::vector<SplitSpan> spans;
    splitter.Find(std::string(run, ' ') + "ab cd", &spans);
    ASSERT_EQ(spans.size(), 3u) << run;
    EXPECT_EQ(spans[1].begin, run - 1);
    EXPECT_EQ(spans[2].begin, run + 2);
  }
}

// The pieces of `text`, by `|`, each match and each stretch between matches.
std::string Cut(const std::string& pattern, const std::string& text) {
  const auto splitter = RegexSplitter::Create(pattern);
  if (!splitter.ok()) return splitter.status().ToString();
  std::vector<SplitSpan> spans;
  splitter->Find(text, &spans);
  std::string pieces;
  for (const SplitSpan& span : spans) {
    absl::StrAppend(&pieces, pieces.empty() ? "" : "|",
                    text.substr(span.begin, span.end - span.begin));
  }
  return pieces;
}

// What Hugging Face's tokenizers (0.23.3) give.
TEST(RegexSplitter, ReadsPatternsAsOniguruma) {
  const struct {
    const char *pattern, *text, *pieces;
  } cases[] = {
      {R"([a-z&&[^aeiou]]+)", "banana", "b|a|n|a|n|a"},
      {R"([\p{Lu}\p{L}&&[^\p{Han}]]+)", "AB中a", "AB|中|a"},
      {R"([a[b-d]&&[c-z]]+)", "abcdz", "ab|cd|z"},
      {R"([^a&&b]+)", "abc", "abc"},
      {R"([[x]^a]+)", "x^ab", "x^a|b"},
      {R"([^\W\d]+)", "ab1-c", "ab|1-|c"},
      {R"([\S\n]+)", "a \n", "a| |\n"},
      {R"([]a]+|[a-c-e]+)", "]a-ebd", "]a|-eb|d"},
      {R"(\p{N}{1,3}+)", "1234567", "1234567"},
      {R"((?:ab){2}?c)", "ababc c", "ababc| |c"},
      {R"(a{,2}b)", "aab", "aab"},
      {R"(a{x)", "a{x", "a{x"},
      {R"(\w+|[^\w\s]+)", "cafe\u0301 हिन्दी x²", "cafe\u0301| |हिन्दी| |x²"},
      {R"([\w]+)", "x²", "x|²"},
      {R"(o\b)", "oo\u0301 o", "oo\u0301 |o"},
      {R"(\s+$|x)", "x  \nx ", "x|  |\n|x| "},
      {R"(^a)", "a\na", "a|\n|a"},
      {R"([\d]+|\h+)", "12ab f0", "12|ab| |f0"},
      {R"(\v)", "a\v\n", "a|\v|\n"},
      {R"(a(?m:.)|b.)", "a\nb\n", "a\n|b\n"},
      {R"([[:alpha:]]+|\u0031)", "éⅫ1", "éⅫ|1"},
  };
  for (const auto& one : cases) EXPECT_EQ(Cut(one.pattern, one.text), one.pieces) << one.pattern;
}

TEST(RegexSplitter, RefusesWhatItCannotReadSo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(a(?i)b|c)", "offset 1: (?i) within a group"},
      {R"(\pL)", "the escape \\p"},
      {R"(a\Q.\E)", "offset 1: the escape \\Q"},
      {R"((?x: a))", "the group (?x:"},
      {R"([[:punct:]])", "offset 1: a set of this name"},
      {R"([a&&])", "an intersection with nothing"},
      {R"(a{1,2}++)", "an interval with two signs"},
      {R"(a*)", "matches the empty string"},
  };
  for (const auto& [pattern, message] : cases) {
    EXPECT_THAT(RegexSplitter::Create(pattern),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(message)));
  }
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "[a";
  EXPECT_THAT(RegexSplitter::Create(deep),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("nested this deep")));
  for (const char* open : {"[a", "[[a]", "[a-", "a\\", "(", "[\\"}) {
    EXPECT_FALSE(RegexSplitter::Create(open).ok()) << open;
  }
}

}  // namespace
}  // namespace tandem::model::tokenizer_internal
