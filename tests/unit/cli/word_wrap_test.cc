// Goal: WordWrap breaks lines between words, never within a word that fits, at most at the given
// width as a terminal counts it, and independently of how the text was cut into pieces.
#include "cli/terminal/word_wrap.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tandem::cli {
namespace {

std::string Wrapped(int columns, absl::string_view text) {
  WordWrap wrap(columns);
  std::string out = wrap.Append(text);
  return out + wrap.Flush();
}

TEST(WordWrap, BreaksBetweenWords) {
  EXPECT_EQ(Wrapped(10, "the capital of France"), "the\ncapital of\nFrance");
  EXPECT_EQ(Wrapped(10, "0123456789 0"), "0123456789\n0");
  EXPECT_EQ(Wrapped(10, "a\n\n  b c"), "a\n\n  b c");
  EXPECT_EQ(Wrapped(0, "no width, no break"), "no width, no break");
}

TEST(WordWrap, LeavesAnOverlongWordToTheTerminal) {
  EXPECT_EQ(Wrapped(5, "see http://example.com/a now"), "see http://example.com/a\nnow");
  EXPECT_EQ(Wrapped(5, "a 12345678 cd"), "a 12345678\ncd");
  EXPECT_EQ(Wrapped(5, "ab 12345678 cdef"), "ab 12345678\ncdef");
}

TEST(WordWrap, CountsWhatATerminalCounts) {
  EXPECT_EQ(Wrapped(4, "\033[1mab\033[0m cd"), "\033[1mab\033[0m\ncd");
  EXPECT_EQ(Wrapped(5, "\033[1mab\033[0m cd"), "\033[1mab\033[0m cd");
  EXPECT_EQ(Wrapped(4, "éé é"), "éé é");
  EXPECT_EQ(Wrapped(3, "e\u0301e\u0301 e\u0301"), "e\u0301e\u0301\ne\u0301");
  EXPECT_EQ(Wrapped(5, "日本語です"), "日本\n語で\nす");
}

TEST(WordWrap, LeavesCodeAsItIs) {
  const std::string code = "```c\nint long_name = other_name;\n```";
  EXPECT_EQ(Wrapped(10, code), code);
  EXPECT_EQ(Wrapped(10, code + "\nwords that wrap"), code + "\nwords that\nwrap");
}

TEST(WordWrap, AWordAppearsWhenItIsWhole) {
  WordWrap wrap(20);
  EXPECT_EQ(wrap.Append("The capi"), "The");
  EXPECT_EQ(wrap.Append("tal of"), " capital");
  EXPECT_EQ(wrap.Flush(), " of");
}

// Random texts: no line but one of an overlong word is too wide, words keep their order, and any
// cuts give the same lines.
TEST(WordWrap, HoldsForAnyTextAndAnyCuts) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const int columns = 1 + static_cast<int>(random() % 30);
    std::string text;
    for (unsigned words = random() % 20; words > 0; --words) {
      text += std::string(random() % 12, 'x') + (random() % 7 == 0 ? "\n" : " ");
      if (random() % 5 == 0) text += "é日`\033[1m\xff";
    }
    const std::string whole = Wrapped(columns, text);
    WordWrap wrap(columns);
    std::string cut;
    for (size_t i = 0; i < text.size();) {
      const size_t length = 1 + random() % 5;
      cut += wrap.Append(absl::string_view(text).substr(i, length));
      i += length;
    }
    cut += wrap.Flush();
    EXPECT_EQ(cut, whole) << text;
    const auto bare = [](const std::string& with) {
      return absl::StrReplaceAll(with, {{"\n", ""}, {" ", ""}});
    };
    EXPECT_EQ(bare(whole), bare(text));
    if (text.find_first_not_of("x \n") != std::string::npos) continue;
    for (const absl::string_view line : absl::StrSplit(whole, '\n')) {
      // Only spaces, or a word that fits no line, reach beyond it.
      size_t last = line.find_last_not_of(' ');
      if (last == absl::string_view::npos || static_cast<int>(last) < columns) continue;
      bool overlong = line.front() == ' ';
      for (const absl::string_view word : absl::StrSplit(line, ' ')) {
        overlong = overlong || static_cast<int>(word.size()) > columns;
      }
      EXPECT_TRUE(overlong) << columns << ": " << line;
    }
  }
}

}  // namespace
}  // namespace tandem::cli
