// Goal: a command whose output cannot be written fails and says so, whatever the output is; a key
// that was not shown is not added; a command that shows something again and again ends when its
// reader has left.
#include <gmock/gmock.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// As RunShell. BIN in `command` is the program `tandem`, which has a minute.
ProgramRun Shell(const std::string& command) {
  const std::string program = absl::StrCat("timeout 60 ", TANDEM_BINARY_DIR, "/bin/tandem");
  return RunShell(absl::StrReplaceAll(command, {{"BIN", program}}));
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class LostOutput : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({"--engine=hash", "--decode=1"}));
    router_ = "--router=" + cluster_->address();
  }
  std::string router_;
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(LostOutput, NoCommandSucceedsWithoutIt) {
  for (const std::string command :
       {"version", "help", "completion bash", "parameter-docs", "config-docs", "generate --help",
        "status ROUTER", "status --json ROUTER", "ps ROUTER", "tokenize ROUTER abc",
        "generate --max-tokens=3 ROUTER abc", "generate --json --max-tokens=3 ROUTER abc"}) {
    const std::string words = absl::StrReplaceAll(command, {{"ROUTER", router_}});
    const ProgramRun run = Shell(absl::StrCat("BIN ", words, " 2>&1 >/dev/full </dev/null"));
    EXPECT_EQ(run.exit_code, 1) << command << ": " << run.output;
    EXPECT_THAT(run.output, HasSubstr("standard output: cannot be written")) << command;
    EXPECT_EQ(Shell(absl::StrCat("BIN ", words, " 2>&1 </dev/null")).exit_code, 0) << command;
  }
}

TEST_F(LostOutput, AKeyThatWasNotShownIsNotAdded) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/lost-keys-", ::getpid());
  const std::string add = absl::StrCat("BIN keys add alice --file ", path);
  const ProgramRun lost = Shell(add + " 2>&1 >/dev/full");
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.output, HasSubstr("the key cannot be shown, so none was added"));
  EXPECT_EQ(ReadAll(path), "");
  EXPECT_EQ(Shell(add).exit_code, 0);
  EXPECT_THAT(ReadAll(path), HasSubstr("alice "));
  // A file that cannot be replaced: the key that was shown is not valid, and the command says so.
  ASSERT_EQ(::mkdir((path + ".new").c_str(), 0700), 0);
  const ProgramRun failed = Shell(add + " 2>&1");
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.output, HasSubstr("the key above is not valid"));
  ::rmdir((path + ".new").c_str());
  std::remove(path.c_str());
}

TEST_F(LostOutput, AWatchEndsWithItsReader) {
  for (const char* form : {"", "--json"}) {
    const std::string watch = absl::StrCat("( { BIN status ", router_, " --watch --every=100ms ",
                                           form, "; echo ended $? >&2; } | head -n 1 ) 2>&1");
    EXPECT_THAT(Shell(watch).output, AnyOf(HasSubstr("ended 0"), HasSubstr("ended 1"))) << form;
  }
  // A router that has left gives it nothing to write.
  cluster_->Stop();
  const ProgramRun alone = Shell(absl::StrCat("( { BIN status ", router_,
                                              " --watch --every=100ms; echo ended $? >&2; } | true "
                                              ") 2>&1"));
  EXPECT_THAT(alone.output, AllOf(HasSubstr("tandem status: "), HasSubstr("ended 0")));
}

}  // namespace
}  // namespace tandem::testing
