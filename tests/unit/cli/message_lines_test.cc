// Goal: a chat's message ends where its user ended it: at a line's end, after a line without a
// backslash at its end, or at the second """.
#include "cli/chat/message_lines.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::cli {
namespace {

// The message of `lines`; "(open)" when it wants another line, "(early)" when it ended before.
std::string Message(const std::vector<std::string>& lines) {
  MessageLines message;
  for (const std::string& line : lines) {
    if (message.complete()) return "(early)";
    message.Add(line);
  }
  return message.complete() ? message.Take() : "(open)";
}

TEST(MessageLines, EndsWhereItsUserEndedIt) {
  EXPECT_EQ(Message({"one"}), "one");
  EXPECT_EQ(Message({""}), "");
  EXPECT_EQ(Message({"one\\", "two"}), "one\ntwo");
  EXPECT_EQ(Message({"one\\"}), "(open)");
  EXPECT_EQ(Message({"\"\"\"one\"\"\""}), "one");
  EXPECT_EQ(Message({"\"\"\"one", "", "two\\", "\"\"\""}), "one\n\ntwo\\");
  EXPECT_EQ(Message({"\"\"\"", "  one", "\"\"\""}), "  one");
  EXPECT_EQ(Message({"\"\"\""}), "(open)");
  EXPECT_EQ(Message({"say \"\"\""}), "say \"\"\"");
}

TEST(MessageLines, TheNextLineBeginsAnotherMessage) {
  MessageLines message;
  message.Add("\"\"\"one");
  EXPECT_FALSE(message.empty());
  EXPECT_EQ(message.Take(), "one");
  EXPECT_TRUE(message.empty());
  message.Add("two");
  EXPECT_EQ(message.Take(), "two");
}

}  // namespace
}  // namespace tandem::cli
