// Goal: `tandem generate` keeps several answers apart however they were asked for, and a batch
// gives an answer as soon as it is there, while more lines are awaited.
#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/child_process.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

TEST(Generate, SeveralAnswersAreApartHoweverTheyWereAskedFor) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start({"--engine=hash", "--decode=1"}));
  const auto run = [&](const std::string& several) {
    return RunProgram({"tandem", "generate", "--router=" + cluster->address(), "--seed=7",
                       "--max-tokens=6", several, "hello"});
  };
  const ProgramRun by_flag = run("--n=2"), by_params = run(R"(--params={"n": 2})");
  EXPECT_EQ(by_flag.exit_code, 0) << by_flag.output;
  EXPECT_EQ(by_params.exit_code, 0) << by_params.output;
  for (const char* mark : {"[0] ", "[1] "}) {
    EXPECT_THAT(by_flag.output, HasSubstr(mark));
    EXPECT_THAT(by_params.output, HasSubstr(mark));
  }
}

TEST(Generate, ABatchAnswersWhileMoreLinesAreAwaited) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start({"--engine=hash", "--decode=1"}));
  ChildProcess batch({absl::StrCat(TANDEM_BINARY_DIR, "/bin/tandem"), "generate",
                      "--router=" + cluster->address(), "--batch=-", "--output=-",
                      "--temperature=0", "--max-tokens=6"});
  for (int i = 0; i < 3; ++i) {
    batch.Write(absl::StrCat(R"({"custom_id": "c)", i, R"(", "prompt": "hello"})"));
    EXPECT_NE(batch.ReadLine(absl::StrCat(R"({"custom_id":"c)", i), absl::Seconds(30)), "") << i;
  }
  EXPECT_EQ(batch.Finish(), 0);
}

}  // namespace
}  // namespace tandem::testing
