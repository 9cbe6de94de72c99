// Goal: an error repeats a text up to the bound, and only tells the length of a longer one.
#include "common/base/shown_text.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(ShownTextTest, IsWholeUpToTheBound) {
  const std::string most(kShownBytesMax, 'x');
  EXPECT_EQ(Shown(""), "");
  EXPECT_EQ(Shown(most), most);
  EXPECT_EQ(ShownInQuotes(most), "\"" + most + "\"");
  EXPECT_EQ(Shown("four", 4), "four");
}

TEST(ShownTextTest, IsItsLengthBeyondTheBound) {
  const std::string more(kShownBytesMax + 1, 'x');
  EXPECT_EQ(Shown(more), "a text of 129 bytes");
  EXPECT_EQ(ShownInQuotes(more), "a text of 129 bytes") << "not a quotation";
  EXPECT_EQ(Shown("fives", 4), "a text of 5 bytes");
}

TEST(ShownTextTest, APathIsCutBeforeAKey) {
  std::string path = "root";
  while (path.size() < kShownLongBytesMax) path += "/key";
  path.resize(kShownLongBytesMax);
  EXPECT_EQ(ShownPath(path, "/"), path);
  // 1,023 bytes are the root and 254 keys, with "/ke" of one more.
  const std::string whole = path.substr(0, path.rfind('/'));
  EXPECT_EQ(ShownPath(path + "y/more", "/"), whole + "...");
  EXPECT_EQ(ShownPath(path + "y", "/[").size(), whole.size() + 3);
  EXPECT_EQ(ShownPath(std::string(kShownLongBytesMax + 1, 'x'), "/"), "...");
}

}  // namespace
}  // namespace tandem
