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
