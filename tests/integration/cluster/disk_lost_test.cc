// Goal: the disk under --kv-disk becomes unusable while a node serves: each write fails. The node
// goes on with the same tokens, reads what it stored before, writes one warning that names the file
// and the cause, and a metric counts what it could not store.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/quiet_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kPrompt = 320, kBlockTokens = 32;

v1::GenerateRequest Request(int number) {
  v1::GenerateRequest request;
  for (int i = 0; i < kPrompt; ++i)
    request.mutable_tokens()->add_ids(1 + (i * 3 + number * 17) % 200);
  request.mutable_stop()->set_max_tokens(12);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_token_ids(true);
  request.mutable_sampling()->set_seed(7);
  return request;
}

class DiskLost : public ::testing::Test {
 protected:
  DiskLost() {
    std::string name = ::testing::TempDir() + "/disk_lost_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~DiskLost() override { std::filesystem::remove_all(folder_); }

  void SetUp() override {
    auto router = RunningProgram::Start({"tandem-router", "--engine=hash", "--grpc=127.0.0.1:0",
                                         "--fleet=127.0.0.1:0", "--http=127.0.0.1:0",
                                         "--heartbeat-interval=50ms", "--queue-deadline=10s"});
    ASSERT_OK(router.status());
    router_ = *std::move(router);
    const std::string grpc = router_->AwaitField("router started", "grpc");
    ASSERT_FALSE(grpc.empty()) << router_->log();
    client_ = cli::Client::Create(grpc);
    // Its memory holds two prompts. A row takes 1 ms, so that reading is predicted to pay.
    auto node = RunningProgram::Start(
        {"tandem-decode-node", "--engine=hash", "--hash-row-time=1ms", "--id=d0", "--kv-blocks=24",
         "--kv-disk=" + folder_, "--kv-disk-bytes=1000000",
         "--routers=" + router_->AwaitField("router started", "fleet")});
    ASSERT_OK(node.status());
    node_ = *std::move(node);
    ASSERT_FALSE(node_->AwaitLine("joined router").empty()) << node_->log();
  }
  std::vector<int32_t> Ask(int number) {
    const Answer answer = Collect(*client_, Request(number));
    EXPECT_OK(answer.status);
    return answer.tokens;
  }
  // Waits until the node's counter is at least this.
  void Await(const std::string& what, int64_t (v1::NodeCounters::*counter)() const, int64_t least) {
    EXPECT_OK(AwaitStatus(*client_, absl::Seconds(20), [&](const v1::GetStatusResponse& status) {
                for (const v1::NodeStatus& node : status.nodes())
                  if ((node.counters().*counter)() >= least) return std::string();
                return absl::StrCat("not ", what);
              }).status());
  }
  // Each write to a file of the node fails from now on, as on a disk that is full or read-only.
  void LoseDisk() {
    struct rlimit limit = {};
    ASSERT_EQ(prlimit(node_->pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
    limit.rlim_cur = 0;
    ASSERT_EQ(prlimit(node_->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  std::vector<std::string> NodeLinesWith(const std::string& text) {
    std::vector<std::string> found;
    for (const auto line : absl::StrSplit(node_->log(), '\n'))
      if (absl::StrContains(line, text)) found.emplace_back(line);
    return found;
  }

  std::string folder_;
  std::unique_ptr<RunningProgram> router_, node_;
  std::unique_ptr<cli::Client> client_;
};

TEST_F(DiskLost, ServiceGoesOnWithOneWarningAndAMetric) {
  std::vector<std::vector<int32_t>> expected;
  {
    const auto cluster =
        TestCluster::Start({"--engine=hash", "--kv-blocks=256", "--prefill=0", "--decode=1"});
    ASSERT_OK(cluster.status());
    for (int number = 0; number < 5; ++number)
      expected.push_back((*cluster)->Generate(Request(number)).tokens);
  }
  EXPECT_EQ(Ask(0), expected[0]);
  Await("stored", &v1::NodeCounters::blocks_saved, kPrompt / kBlockTokens);
  ASSERT_NO_FATAL_FAILURE(LoseDisk());
  for (int number = 1; number < 5; ++number) EXPECT_EQ(Ask(number), expected[number]) << number;
  Await("refused", &v1::NodeCounters::saves_failed, 1);
  EXPECT_EQ(Ask(0), expected[0]) << "memory has forgotten it";
  Await("read back", &v1::NodeCounters::blocks_loaded, kPrompt / kBlockTokens - 1);

  ASSERT_FALSE(node_->AwaitLine("cannot store KV blocks").empty()) << node_->log();
  const std::vector<std::string> warnings = NodeLinesWith("cannot store KV blocks");
  ASSERT_EQ(warnings.size(), 1u) << node_->log();
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("cannot store KV blocks, trying again after a pause"),
                                 HasSubstr(folder_ + "/d0.kv"), HasSubstr("File too large"),
                                 HasSubstr("pause=30s")));
  const std::string http = router_->AwaitField("router started", "http");
  EXPECT_THAT(testing::Ask(http, GetOf("/metrics")).body,
              ContainsRegex("tandem_node_storage_failures_total[{][^}]*d0[^}]*[}] [1-9]"));
  EXPECT_TRUE(node_->running()) << node_->log();
}

}  // namespace
}  // namespace tandem::testing
