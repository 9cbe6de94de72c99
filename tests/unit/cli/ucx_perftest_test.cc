// Goal: where `ucx_perftest` cannot run, its comparison ends at once with what the program wrote,
// and a client that came before its server listened is started again.
#include "cli/bench/ucx_perftest.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/testing/test_folder.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

// A folder that comes first in PATH, with a program of the name `ucx_perftest`. It gets the
// environment that the folder's path is in, as FOLDER.
class UcxPerftestTest : public ::testing::Test {
 protected:
  UcxPerftestTest() {
    path_ = std::getenv("PATH");
    ::setenv("PATH", absl::StrCat(folder_.path(), ":", path_).c_str(), 1);
    environment_ = {{"PATH", path_}, {"FOLDER", folder_.path()}};
  }
  ~UcxPerftestTest() override { ::setenv("PATH", path_.c_str(), 1); }

  // `server` and `client`: what a shell runs for either.
  void Install(const std::string& server, const std::string& client) {
    const std::filesystem::path program = folder_ / "ucx_perftest";
    std::ofstream(program) << "#!/bin/sh\nif [ \"$1\" = -p ]; then\n"
                           << server << "\nelse\n"
                           << client << "\nfi\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  }

  testing::TestFolder folder_{"ucx-perftest"};
  std::string path_;
  std::map<std::string, std::string> environment_;
};

TEST_F(UcxPerftestTest, AServerThatEndsIsTheReason) {
  Install("echo 'bind: address in use' >&2; exit 1", "exit 1");
  const auto gbps = UcxPerftestGbps("ucp_am_bw", 65536, environment_);
  EXPECT_EQ(gbps.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(gbps.status().message(), HasSubstr("server of ucx_perftest ended"));
  EXPECT_THAT(gbps.status().message(), HasSubstr(": bind: address in use"));
}

TEST_F(UcxPerftestTest, AClientIsStartedAgain) {
  Install("exec sleep 60",
          "test -e $FOLDER/first || { touch $FOLDER/first; echo 'no server' >&2; exit 1; }\n"
          "echo 500,5.330,359.632,359.632,100.00,1000.00,2781,2781");
  const auto gbps = UcxPerftestGbps("ucp_am_bw", 65536, environment_);
  ASSERT_TRUE(gbps.ok()) << gbps.status();
  EXPECT_DOUBLE_EQ(*gbps, 1.048576);
}

}  // namespace
}  // namespace tandem::cli
