// Goal: Markdown on a terminal looks the same however its text was cut, keeps every visible
// character but the marks it shows as styles, ends its styles, and lets no control character
// through.
#include "cli/report/markdown_stream.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "absl/strings/str_replace.h"

namespace tandem::cli {
namespace {

// Styles in words: <b> bold, <c> code, <bc> both, <> none.
std::string Shown(absl::string_view text) {
  MarkdownStream stream;
  std::string out = stream.Append(text);
  out += stream.Flush();
  return absl::StrReplaceAll(out, {{"\033[0m\033[1m\033[36m", "<bc>"},
                                   {"\033[0m\033[1m", "<b>"},
                                   {"\033[0m\033[36m", "<c>"},
                                   {"\033[0m", "<>"}});
}

TEST(MarkdownStream, StylesWhatIsMarked) {
  EXPECT_EQ(Shown("plain text"), "plain text");
  EXPECT_EQ(Shown("a **bold** b"), "a <b>bold<> b");
  EXPECT_EQ(Shown("a `code` b"), "a <c>code<> b");
  EXPECT_EQ(Shown("# Head\nbody"), "<b>Head<>\nbody");
  EXPECT_EQ(Shown("###### Head\nbody"), "<b>Head<>\nbody");
  EXPECT_EQ(Shown("```py\nx = 2 ** 3 # `a`\n```\nafter"),
            "```<c>py\nx = 2 ** 3 # `a`\n```<>\nafter");
}

TEST(MarkdownStream, WhatIsNoMarkStays) {
  EXPECT_EQ(Shown("* item\n* item"), "* item\n* item");
  EXPECT_EQ(Shown("2 * 3 ***"), "2 * 3 ***");
  EXPECT_EQ(Shown("#include <x>\nC# rocks\n#"), "#include <x>\nC# rocks\n#");
  EXPECT_EQ(Shown("`a ** b`"), "<c>a ** b<>");
  EXPECT_EQ(Shown("####### seven"), "####### seven");
}

TEST(MarkdownStream, HalfAMarkSpoilsOnlyItsLine) {
  EXPECT_EQ(Shown("a **bold\nnext"), "a <b>bold<>\nnext");
  EXPECT_EQ(Shown("a `code\nnext"), "a <c>code<>\nnext");
  EXPECT_EQ(Shown("a **bold"), "a <b>bold<>");
  EXPECT_EQ(Shown("```\nunfinished"), "```<c>\nunfinished<>");
}

TEST(MarkdownStream, ControlCharactersAreLeftOut) {
  EXPECT_EQ(Shown("a\033[2Jb\x07\r\x7F"
                  "c\td\xC3\xA9"),
            "a[2Jbc\td\xC3\xA9");
}

TEST(MarkdownStream, ControlCharactersOfTwoBytesAreLeftOut) {
  EXPECT_EQ(Shown("a\xC2\x9B"
                  "31mb\xC2\x80\xC2\x9F"),
            "a31mb");
  EXPECT_EQ(Shown("\xC2\xA0 \xC2\xA7**\xC2\xB5**"), "\xC2\xA0 \xC2\xA7<b>\xC2\xB5<>");
  MarkdownStream stream;
  EXPECT_EQ(stream.Append("a\xC2"), "a");
  EXPECT_EQ(stream.Append("\x9B"
                          "31m"),
            "31m");
  EXPECT_EQ(stream.Append("\xC2"), "");
  EXPECT_EQ(stream.Append("\xA7"), "\xC2\xA7");
}

TEST(MarkdownStream, LooksTheSameHoweverItIsCut) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  constexpr char kAlphabet[] = "**``## \nab\033";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t i = random() % 40; i > 0; --i) {
      text += kAlphabet[random() % (sizeof kAlphabet - 1)];
    }
    MarkdownStream whole, cut;
    std::string expected = whole.Append(text);
    expected += whole.Flush();
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 3;
      got += cut.Append(absl::string_view(text).substr(at, size));
      at += size;
    }
    got += cut.Flush();
    EXPECT_EQ(got, expected) << text;
    // Letters and line breaks all come through, in order.
    const auto letters = [](const std::string& from) {
      std::string kept;
      for (const char c :
           absl::StrReplaceAll(from, {{"\033[0m", ""}, {"\033[1m", ""}, {"\033[36m", ""}})) {
        if (c == 'a' || c == 'b' || c == '\n') kept += c;
      }
      return kept;
    };
    EXPECT_EQ(letters(got), letters(text)) << text;
  }
}

}  // namespace
}  // namespace tandem::cli
