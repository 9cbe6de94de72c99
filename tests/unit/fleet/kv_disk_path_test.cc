// Goal: each node has a file of its own for KV blocks, whatever its id, and finds it at its next
// start: a node without an id, whose name changes from start to start, is not started with one.
#include "common/node/kv_disk_path.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/config/process_main.h"
#include "common/node/node_process.h"

namespace tandem::node {
namespace {

TEST(KvDiskPath, PlainIdsNameTheirFile) {
  EXPECT_EQ(KvDiskPath("/kv", "decode-0"), "/kv/decode-0.kv");
  EXPECT_EQ(KvDiskPath("/kv", "host.a_b 1"), "/kv/host.a_b 1.kv");
}

TEST(KvDiskPath, NoTwoIdsShareAFile) {
  const std::set<std::string> ids = {"a/b", "a_b", "a%2Fb", "a%252Fb", "a//b", "/a_b", "a%b"};
  std::set<std::string> paths;
  for (const std::string& id : ids) {
    const std::string path = KvDiskPath("/kv", id);
    EXPECT_EQ(path.rfind('/'), 3u) << path << " is in another folder";
    paths.insert(path);
  }
  EXPECT_EQ(paths.size(), ids.size());
}

class NodeMainTest : public ::testing::Test {
 protected:
  // No node starts: its health service has no such address.
  static int Run(std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"tandem-decode-node", "--engine=hash", "--health=192.0.2.1:1"});
    std::vector<char*> words;
    for (std::string& flag : flags) words.push_back(flag.data());
    return NodeMain(static_cast<int>(words.size()), words.data(),
                    {.program = "tandem-decode-node", .purpose = "A test.", .role = "decode"});
  }
};

TEST_F(NodeMainTest, AFileForBlocksNeedsAnId) {
  const std::string disk = "--kv-disk=" + ::testing::TempDir();
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Run({disk}), config::kExitUsage);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("--id"), std::string::npos);
  EXPECT_EQ(Run({disk, "--id=d0"}), config::kExitFailed) << "it looks for its address";
  EXPECT_EQ(Run({disk, "--kv-disk-bytes=0"}), config::kExitFailed) << "it keeps no file";
}

}  // namespace
}  // namespace tandem::node
