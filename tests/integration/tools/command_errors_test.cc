// Goal: the errors that a newcomer meets first say what to do: no router, no key, a port that is in
// use, a model that is not there; and each is said once.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "router/front_end/api_keys.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t Times(const std::string& text, const std::string& words) {
  const std::vector<std::string> parts = absl::StrSplit(text, words);
  return parts.size() - 1;
}

TEST(CommandErrors, WithoutARouter) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"tandem", "status"},
                                                {"tandem", "ps"},
                                                {"tandem", "generate", "x"}}) {
    std::vector<std::string> all = words;
    all.push_back("--router=127.0.0.1:1");
    const ProgramRun run = RunProgram(all);
    EXPECT_EQ(run.exit_code, 1) << words[1];
    EXPECT_THAT(run.output, HasSubstr("router at 127.0.0.1:1: none answers there, the connection "
                                      "was refused; `tandem up` starts one"));
    EXPECT_THAT(run.output, Not(HasSubstr("failed to connect")));
  }
}

TEST(CommandErrors, WithoutAKey) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/error-keys-", ::getpid());
  std::ofstream(path) << "alice " << router::Sha256Hex("alice") << "\n";
  {
    ASSERT_OK_AND_ASSIGN(const auto cluster,
                         TestCluster::Start({"--engine=hash", "--decode=1", "--api-keys=" + path}));
    const std::string router = "--router=" + cluster->address();
    const ProgramRun none = RunProgram({"tandem", "ps", router});
    EXPECT_EQ(none.exit_code, 1);
    EXPECT_THAT(none.output, HasSubstr("--api-key is missing: this router requires keys"));
    const ProgramRun wrong = RunProgram({"tandem", "ps", router, "--api-key=bob"});
    EXPECT_EQ(wrong.exit_code, 1);
    EXPECT_THAT(wrong.output, Not(HasSubstr("is missing")));
  }
  std::remove(path.c_str());
}

TEST(CommandErrors, OfUpAreSaidOnceAndNameTheFlag) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, TestCluster::Start({"--engine=hash", "--decode=1"}));
  const std::string taken = "--grpc=" + cluster->address();
  const ProgramRun run = RunProgram({"tandem", "up", "--engine=hash", "--http=", taken});
  EXPECT_EQ(run.exit_code, 1) << run.output;
  EXPECT_EQ(Times(run.output, "--grpc chooses another port"), 1u) << run.output;
  EXPECT_THAT(run.output,
              HasSubstr("router-0 ended with exit code 1; its last line above says why"));
  // Where the logs are left out, the command's own line has the reason.
  const ProgramRun quiet =
      RunProgram({"tandem", "up", "--engine=hash", "--http=", "--quiet", taken});
  EXPECT_EQ(Times(quiet.output, "--grpc chooses another port"), 1u) << quiet.output;
}

}  // namespace
}  // namespace tandem::testing
