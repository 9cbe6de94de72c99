// Goal: a log line is the same event in every format: text with quoted values, JSON with numbers as
// numbers and any bytes as valid UTF-8, and colours for warnings and errors alone.
#include "common/telemetry/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Logged(LogFormat format, LogLevel level, std::initializer_list<LogField> fields) {
  SetLogFormat(format);
  ::testing::internal::CaptureStderr();
  Log(level, "lease installed", fields);
  SetLogFormat(LogFormat::kText);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, TextQuotesWhatWouldBreakTheLine) {
  EXPECT_THAT(Logged(LogFormat::kText, LogLevel::kInfo,
                     {{"request_id", "r-17"}, {"blocks", 3}, {"why", "a b\n"}, {"", "left out"}}),
              EndsWith("Z INFO lease installed request_id=r-17 blocks=3 why=\"a b\\n\"\n"));
}

// Beyond ASCII: the control characters U+0080 to U+009F, and those that break or turn lines.
TEST(Log, TextHasNoCharactersThatATerminalObeys) {
  for (const char* control : {"\xc2\x80", "\xc2\x9b", "\xc2\x9f", "\xe2\x80\xa8", "\xe2\x80\xa9",
                              "\xe2\x80\xaa", "\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x81\xa9"}) {
    const std::string line = Logged(LogFormat::kText, LogLevel::kInfo,
                                    {{"id", absl::StrCat("a", control, "é", control)}});
    EXPECT_THAT(line, Not(HasSubstr(control)));
    EXPECT_THAT(line, HasSubstr("id=\"a\\"));
    EXPECT_THAT(line, HasSubstr("é\\"));
  }
  EXPECT_THAT(Logged(LogFormat::kText, LogLevel::kInfo, {{"id", "a\xc2\x9b"}}),
              HasSubstr(R"(id="a\302\233")"));
  // Neighbours of these are shown as they are.
  EXPECT_THAT(
      Logged(LogFormat::kText, LogLevel::kInfo, {{"id", "\xc2\xa0\xe2\x80\xa7\xe2\x80\xaf…"}}),
      EndsWith(" id=\xc2\xa0\xe2\x80\xa7\xe2\x80\xaf…\n"));
}

TEST(Log, JsonKeepsNumbersAndTexts) {
  const std::string line = Logged(LogFormat::kJson, LogLevel::kWarning,
                                  {{"request_id", "17"},
                                   {"blocks", 3},
                                   {"ms", 0.5},
                                   {"why", "a \"b\"\n\xff"},
                                   {"", "left out"},
                                   {"never", std::numeric_limits<double>::infinity()}});
  ASSERT_THAT(line, EndsWith("}\n"));
  const auto object = nlohmann::json::parse(line);
  EXPECT_EQ(object["level"], "WARNING");
  EXPECT_EQ(object["message"], "lease installed");
  EXPECT_EQ(object["request_id"], "17");
  EXPECT_EQ(object["blocks"], 3);
  EXPECT_EQ(object["ms"], 0.5);
  EXPECT_EQ(object["why"], "a \"b\"\n\xEF\xBF\xBD");
  EXPECT_TRUE(object["never"].is_string());
  EXPECT_FALSE(object.contains(""));
}

TEST(Log, ColoursMarkWhatNeedsAttention) {
  EXPECT_THAT(Logged(LogFormat::kColours, LogLevel::kInfo, {}), Not(HasSubstr("\033")));
  EXPECT_THAT(Logged(LogFormat::kColours, LogLevel::kError, {}), HasSubstr("\033[31mERROR\033[0m"));
}

}  // namespace
}  // namespace tandem
