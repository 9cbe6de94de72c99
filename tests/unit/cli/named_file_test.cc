// Goal: files that flags name are read and written whole or refused by flag and name, input is
// bounded, and one standard stream serves one flag.
#include "cli/files/named_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

std::string TemporaryPath() {
  return ::testing::TempDir() + "/named_file_" + std::to_string(::getpid());
}

TEST(NamedFile, WhatIsWrittenIsRead) {
  const NamedFile file = {"--html", TemporaryPath()};
  const std::string text = std::string("a\0b\n", 4) + std::string(200'000, 'x');
  ASSERT_OK(WriteOutput(file, text));
  ASSERT_OK_AND_ASSIGN(const std::string read, ReadInput(file));
  EXPECT_EQ(read, text);
  std::filesystem::remove(file.path);
  EXPECT_OK(WriteOutput({"--html", ""}, "nothing"));
}

TEST(NamedFile, InputIsBounded) {
  const NamedFile file = {"--text", TemporaryPath()};
  ASSERT_OK(WriteOutput(file, std::string(100, 'x')));
  EXPECT_OK(ReadInput(file, 100).status());
  EXPECT_THAT(ReadInput(file, 99).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("--text " + file.path + ": longer than 99 bytes")));
  std::filesystem::remove(file.path);
  // A stream without an end costs no more than its bound.
  EXPECT_THAT(ReadInput({"--text", "/dev/zero"}, 1 << 20).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("longer than 1048576")));
}

TEST(NamedFile, WhatCannotBeUsedIsNamed) {
  EXPECT_THAT(ReadInput({"--text", "/no/such/file"}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--text /no/such/file")));
  EXPECT_THAT(ReadInput({"--text", "/tmp"}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--text /tmp: cannot be read")));
  EXPECT_THAT(CheckOutputs({{"--json", "/no/such/file"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--json /no/such/file")));
  EXPECT_THAT(WriteOutput({"--json", "/no/such/file"}, "x"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--json /no/such/file")));
}

TEST(NamedFile, ACheckLeavesNothingBehindAndKeepsALink) {
  const NamedFile file = {"--json", TemporaryPath()};
  const std::string link = file.path + "_link", second = file.path + "_second";
  EXPECT_OK(CheckOutputs({file}));
  EXPECT_FALSE(std::filesystem::exists(file.path));
  // To no file yet: by an absolute path, and by a link that is relative to the first one's folder.
  std::filesystem::create_symlink(file.path, link);
  std::filesystem::create_symlink(std::filesystem::path(link).filename(), second);
  EXPECT_OK(CheckOutputs({{"--json", second}}));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::is_symlink(second));
  EXPECT_FALSE(std::filesystem::exists(file.path));
  ASSERT_OK(WriteOutput({"--json", second}, "x"));
  EXPECT_OK(CheckOutputs({{"--json", second}}));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadInput(file));
  EXPECT_EQ(text, "x");
  for (const std::string& path : {second, link, file.path}) std::filesystem::remove(path);
  // A link to itself is no file.
  std::filesystem::create_symlink(link, link);
  EXPECT_FALSE(CheckOutputs({{"--json", link}}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::filesystem::remove(link);
}

TEST(NamedFile, OneStandardStreamServesOneFlag) {
  EXPECT_OK(CheckOutputs({{"--json", "-"}, {"--html", ""}}));
  EXPECT_THAT(
      CheckOutputs({{"--json", "-"}, {"--csv", ""}, {"--html", "-"}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("--json and --html: both are -, and there is one standard output")));
  EXPECT_THAT(CheckInputs({{"PROMPT", "-"}, {"--grammar", "-"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("PROMPT and --grammar")));
}

TEST(NamedFile, AReportGivesWayToAResultOnStandardOutput) {
  ::testing::internal::CaptureStdout();
  PrintReport("table\n", {{"--json", "-"}});
  ASSERT_OK(WriteOutput({"--json", "-"}, "{}\n"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "{}\n");
  ::testing::internal::CaptureStdout();
  PrintReport("table\n", {{"--json", ""}, {"--html", "file"}});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "table\n");
}

}  // namespace
}  // namespace tandem::cli
