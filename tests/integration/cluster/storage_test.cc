// Goal: a cluster with --kv-disk reads after a restart what it computed before, and its answers are
// those of a cluster without one, also when the files were damaged or cannot be used at all. With
// --swap-space, memory for a quarter of what runs serves all, with the same answers. With both,
// host memory keeps what was read from disk.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {
namespace {

constexpr int kPrompt = 320, kBlockTokens = 32;

class StorageTest : public ::testing::Test {
 protected:
  StorageTest() {
    std::string name = ::testing::TempDir() + "/storage_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~StorageTest() override { std::filesystem::remove_all(folder_); }

  // A row takes 1 ms, so that reading is always predicted to pay.
  std::unique_ptr<TestCluster> Start(const std::string& disk,
                                     const std::string& bytes = "--kv-disk-bytes=1000000") {
    auto cluster = TestCluster::Start({"--engine=hash", "--hash-row-time=1ms", "--kv-blocks=64",
                                       "--prefill=1", "--decode=1", "--kv-disk=" + disk, bytes});
    EXPECT_OK(cluster.status());
    return *std::move(cluster);
  }
  static std::vector<int32_t> Ask(TestCluster& cluster, int first_token = 1) {
    v1::GenerateRequest request;
    for (int i = 0; i < kPrompt; ++i) request.mutable_tokens()->add_ids(first_token + i % 200);
    request.mutable_stop()->set_max_tokens(12);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    request.mutable_sampling()->set_seed(7);
    const Answer answer = cluster.Generate(request);
    EXPECT_OK(answer.status);
    return answer.tokens;
  }
  // The sum over nodes, once it is at least `least`; nodes report with their heartbeats.
  static int64_t Await(TestCluster& cluster, int64_t least,
                       int64_t (v1::NodeCounters::*of)() const) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    int64_t sum = 0;
    do {
      sum = 0;
      const auto status = cluster.client().GetStatus(absl::Seconds(10));
      EXPECT_OK(status.status());
      for (const v1::NodeStatus& node : status->nodes()) sum += (node.counters().*of)();
    } while (sum < least && absl::Now() < deadline);
    EXPECT_GE(sum, least);
    return sum;
  }
  static int64_t Computed(TestCluster& cluster) {
    const auto status = cluster.client().GetStatus(absl::Seconds(10));
    EXPECT_OK(status.status());
    int64_t sum = 0;
    for (const v1::NodeStatus& node : status->nodes())
      sum += node.counters().prompt_tokens().computed();
    return sum;
  }

  std::string folder_;
};

TEST_F(StorageTest, ARestartedClusterReadsWhatItComputed) {
  std::vector<int32_t> first;
  {
    const auto cluster = Start(folder_ + "/kv");
    first = Ask(*cluster);
    // Both nodes hold the prompt.
    Await(*cluster, 2 * (kPrompt / kBlockTokens), &v1::NodeCounters::blocks_saved);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  const auto cluster = Start(folder_ + "/kv");
  EXPECT_EQ(Ask(*cluster), first);
  Await(*cluster, kPrompt / kBlockTokens - 1, &v1::NodeCounters::blocks_loaded);
  Await(*cluster, kPrompt, &v1::NodeCounters::prompt_tokens_total);
  EXPECT_LE(Computed(*cluster), 2 * kBlockTokens);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// Host memory above the disk: after a restart the first prompt comes from disk. The next time,
// when the pool has lost it again, it comes from host memory.
TEST_F(StorageTest, HostMemoryKeepsWhatWasReadFromDisk) {
  const auto start = [this] {
    auto cluster = TestCluster::Start({"--engine=hash", "--hash-row-time=1ms", "--kv-blocks=16",
                                       "--prefill=0", "--decode=1", "--kv-disk=" + folder_,
                                       "--kv-disk-bytes=1000000", "--swap-space=1000000"});
    EXPECT_OK(cluster.status());
    return *std::move(cluster);
  };
  const auto tiers = [](TestCluster& cluster) {
    const auto status = cluster.client().GetStatus(absl::Seconds(10));
    EXPECT_OK(status.status());
    return status->nodes(0);
  };
  std::vector<int32_t> first;
  {
    const auto cluster = start();
    first = Ask(*cluster);
    Await(*cluster, kPrompt / kBlockTokens, &v1::NodeCounters::blocks_saved);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  const auto cluster = start();
  EXPECT_EQ(Ask(*cluster), first);
  const int64_t read =
      Await(*cluster, kPrompt / kBlockTokens - 1, &v1::NodeCounters::blocks_loaded);
  v1::NodeStatus node = tiers(*cluster);
  EXPECT_EQ(node.counters().disk().blocks_read(), read);
  EXPECT_EQ(node.counters().host_memory().blocks_read(), 0);
  EXPECT_GE(node.load().blocks_in_host_memory(), read) << "copies of what was read";
  Ask(*cluster, /*first_token=*/50);  // crowds the pool
  EXPECT_EQ(Ask(*cluster), first);
  Await(*cluster, read + 1, &v1::NodeCounters::blocks_loaded);
  node = tiers(*cluster);
  EXPECT_EQ(node.counters().disk().blocks_read(), read);
  EXPECT_GT(node.counters().host_memory().blocks_read(), 0);
  EXPECT_GT(node.storage_cost().host_read().samples(), 0);
  EXPECT_GT(node.storage_cost().read().samples(), 0);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST_F(StorageTest, DamagedFilesCostOnlyTime) {
  std::vector<int32_t> first;
  {
    const auto cluster = Start(folder_);
    first = Ask(*cluster);
    Await(*cluster, 2 * (kPrompt / kBlockTokens), &v1::NodeCounters::blocks_saved);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  for (const char* node : {"prefill-0", "decode-0"}) {
    std::fstream file(folder_ + "/" + node + ".kv",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto bytes = static_cast<int64_t>(file.tellg());
    // Every slot begins at a page behind the header and the entries.
    for (int64_t at = 4096; at + 4 < bytes; at += 4096) {
      if (at < 4 * 4096) continue;  // the entries stay
      file.seekp(at + 1);
      file << "xyz";
    }
  }
  const auto cluster = Start(folder_);
  EXPECT_EQ(Ask(*cluster), first);
  Await(*cluster, 1, &v1::NodeCounters::blocks_damaged);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

TEST_F(StorageTest, AFolderThatCannotBeUsedCostsOnlyTheStorage) {
  std::ofstream(folder_ + "/prefill-0.kv") << "not a file of blocks";
  ASSERT_EQ(mkdir((folder_ + "/decode-0.kv").c_str(), 0700), 0);
  const auto cluster = Start(folder_);
  EXPECT_FALSE(Ask(*cluster).empty());
  // The prefill node's file was of no use and is made anew; the decode node has none.
  Await(*cluster, kPrompt / kBlockTokens, &v1::NodeCounters::blocks_saved);
  const auto status = cluster->client().GetStatus(absl::Seconds(10));
  ASSERT_OK(status.status());
  for (const v1::NodeStatus& node : status->nodes())
    EXPECT_EQ(node.load().blocks_stored() > 0, node.role() == "prefill") << node.node_id();
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

// A budget of zero, and a file system on which nothing can be made (as root, permissions do not
// matter): the nodes serve from memory.
TEST_F(StorageTest, WithoutBudgetOrWritableDiskNodesServeFromMemory) {
  std::vector<int32_t> first;
  for (const auto& [disk, bytes] :
       {std::pair(folder_ + "/kv", "--kv-disk-bytes=0"),
        std::pair(std::string("/proc/kv"), "--kv-disk-bytes=1000000")}) {
    SCOPED_TRACE(disk);
    const auto cluster = Start(disk, bytes);
    const std::vector<int32_t> answer = Ask(*cluster);
    EXPECT_FALSE(answer.empty());
    if (first.empty()) first = answer;
    EXPECT_EQ(answer, first);
    EXPECT_EQ(Ask(*cluster), first);
    Await(*cluster, 2 * kPrompt, &v1::NodeCounters::prompt_tokens_total);
    const auto status = cluster->client().GetStatus(absl::Seconds(10));
    ASSERT_OK(status.status());
    for (const v1::NodeStatus& node : status->nodes()) {
      EXPECT_EQ(node.load().blocks_stored(), 0) << node.node_id();
      EXPECT_EQ(node.counters().saves_failed(), 0) << node.node_id();
    }
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/kv/decode-0.kv"));
}

// Eight answers of 256 tokens each, asked at once.
std::vector<std::vector<int32_t>> AskTogether(TestCluster& cluster) {
  std::vector<std::vector<int32_t>> answers(8);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < answers.size(); ++i)
    clients.emplace_back([&, i] {
      v1::GenerateRequest request;
      for (int t = 0; t < 64; ++t)
        request.mutable_tokens()->add_ids(1 + (t * 7 + static_cast<int>(i) * 31) % 200);
      request.mutable_stop()->set_max_tokens(192);
      request.mutable_stop()->set_ignore_eos(true);
      request.set_return_token_ids(true);
      request.mutable_sampling()->set_seed(7 + i);
      const Answer answer = cluster.Generate(request);
      EXPECT_OK(answer.status);
      answers[i] = answer.tokens;
    });
  for (std::thread& client : clients) client.join();
  return answers;
}

TEST_F(StorageTest, SwapSpaceServesFourTimesWhatThePoolHolds) {
  const auto start = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"--engine=hash", "--hash-row-time=1ms", "--prefill=0", "--decode=1"});
    auto cluster = TestCluster::Start(flags);
    EXPECT_OK(cluster.status());
    return *std::move(cluster);
  };
  std::vector<std::vector<int32_t>> whole;
  {
    const auto cluster = start({"--kv-blocks=80"});
    whole = AskTogether(*cluster);
    EXPECT_EQ(cluster->Stop(), "exit code 0");
  }
  const auto cluster = start({"--kv-blocks=16", "--swap-space=1000000"});
  EXPECT_EQ(AskTogether(*cluster), whole);
  Await(*cluster, 1, &v1::NodeCounters::preemptions);
  Await(*cluster, 1, &v1::NodeCounters::blocks_loaded);
  EXPECT_EQ(cluster->Stop(), "exit code 0");
}

}  // namespace
}  // namespace tandem::testing
