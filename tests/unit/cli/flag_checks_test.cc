// Goal: what a command would ignore, or could not end with, is refused with its name before any
// work begins.
#include <gmock/gmock.h>

#include <filesystem>

#include "cli/command_line/commands.h"
#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

void ExpectUsageError(Command& command, const std::vector<std::string>& words,
                      const std::string& named) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(command.Run(words, {}), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(named));
}

TEST(FlagChecks, AFleetsNameIsOneThatCertificatesCanName) {
  const testing::TestFolder folder("flag_checks");
  const std::string made = (folder / "certs").string();
  for (const char* name : {"", "/", "a//b", "/a", "a/", "a b", "a:1", "a?b", "\xC3\xA9"}) {
    ExpectUsageError(*NewCertsCommand(),
                     {"make", "--folder=" + made, std::string("--fleet=") + name},
                     std::string("--fleet '") + name + "': expected a name of letters");
  }
  EXPECT_FALSE(std::filesystem::exists(made));
}

TEST(FlagChecks, FlagsOfOneRunAreNoneOfASwarm) {
  for (const char* many : {"--swarm=1", "--minutes=1"}) {
    for (const char* one : {"--schedule=/no/such/file", "--svg=/no/such/file", "shrink"})
      ExpectUsageError(*NewSimCommand(), {many, one},
                       "shrink, --schedule and --svg are of one run");
  }
}

// As a shell's unset variable gives it: the answer would have another form than was asked for.
TEST(FlagChecks, AnEmptyConstraintIsNotNone) {
  for (const char* flag : {"json-schema", "regex", "choice", "grammar"}) {
    ExpectUsageError(*NewGenerateCommand(), {std::string("--") + flag + "=", "hello"},
                     std::string(flag) + ": value '' (flag, argument 1): expected ");
  }
}

TEST(FlagChecks, AnEmptyPromptIsNamedByItsFlag) {
  ExpectUsageError(*NewGenerateCommand(), {"--chat="},
                   "chat: value '' (flag, argument 1): expected a message that is not empty");
  ExpectUsageError(*NewGenerateCommand(), {"--tokens="},
                   "tokens: value '' (flag, argument 1): expected at least one token id");
}

TEST(FlagChecks, FlagsThatWouldChangeNothingAreRefused) {
  const auto refused = [](const std::vector<std::string>& words, const std::string& named) {
    ExpectUsageError(*NewGenerateCommand(), words, named);
  };
  refused({"--system=be brief", "hello"}, "--system needs --chat");
  refused({"--logprobs=2", "hello"}, "--logprobs needs --json");
  refused({"--logprobs=2", "--summary", "hello"}, "--logprobs needs --json");
  refused({"--concurrency=2", "hello"}, "--concurrency needs --batch");
  for (const char* flag : {"--json", "--summary", "--logprobs=2"}) {
    refused({"--batch=/no/such/file", "--output=-", flag},
            std::string(flag).substr(0, std::string(flag).find('=')) + ": given with --batch");
  }
}

// What stands in the environment is for every run, also for those that do not need it.
TEST(FlagChecks, WhatTheEnvironmentSaysMayGoUnused) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(NewGenerateCommand()->Run({"--router=127.0.0.1:1", "hello"},
                                      {{"TANDEM_GENERATE_SYSTEM", "be brief"},
                                       {"TANDEM_GENERATE_CONCURRENCY", "2"},
                                       {"TANDEM_GENERATE_LOGPROBS", "2"}}),
            1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("127.0.0.1:1"));
}

TEST(FlagChecks, AnswersHaveTheRoutersBounds) {
  ExpectUsageError(*NewGenerateCommand(), {"--n=129", "hello"}, "n: value '129'");
  ExpectUsageError(*NewGenerateCommand(), {"--best-of=129", "hello"}, "from 0 to 128");
  ExpectUsageError(*NewGenerateCommand(), {"--beam-width=65", "hello"}, "from 0 to 64");
}

TEST(FlagChecks, TimesHaveTheirRanges) {
  ExpectUsageError(*NewUpCommand(), {"--ready-timeout=-5s"}, "ready-timeout");
  ExpectUsageError(*NewUpCommand(), {"--ready-timeout=0s"}, "ready-timeout");
  ExpectUsageError(*NewBenchCommand(), {"engine", "--time=inf"}, "time");
  ExpectUsageError(*NewBenchCommand(), {"engine", "--time=-1s"}, "time");
}

TEST(FlagChecks, AReportThatCannotBeWrittenEndsChaosBeforeItsRun) {
  ExpectUsageError(*NewChaosCommand(), {"--network=loopback", "--json=/no/such/folder/file"},
                   "--json /no/such/folder/file: cannot be written");
}

}  // namespace
}  // namespace tandem::cli
