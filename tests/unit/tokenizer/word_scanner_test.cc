// Goal: each hand-written scanner cuts text exactly where the pattern it stands for does, on random
// text dense in what the patterns tell apart and on every line of the golden corpus.
#include "common/model/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/escaping.h"
#include "common/model/tokenizer/pre_tokenizer.h"
#include "common/model/tokenizer/utf8.h"
#include "tests/golden/tokenizer/golden_files.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model::tokenizer_internal {
namespace {

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

}  // namespace
}  // namespace tandem::model::tokenizer_internal
