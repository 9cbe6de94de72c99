// Goal: with a quarter of the KV memory that its requests need, a cluster still answers all of them
// with the same tokens and log-probabilities, in each way of serving (static batches, interleaved,
// disaggregated), whether preempted sequences are computed again or read back, from host memory or
// from host memory above a disk. No request is overtaken without end: its age is bounded, counted
// in requests that came later and ended earlier.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <thread>

#include "common/config/schema.h"
#include "common/model/model_path.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

constexpr int kRequests = 200, kRequestsOfModel = 48;
constexpr int kClients = 32;
// A sequence has one block when it is taken in, and four at its end on average: those of all
// clients need four times this.
constexpr int kBlockTokens = 16;
constexpr int kBlocks = kClients;
constexpr int kPromptMin = 8, kPromptMax = 14, kAnswerMin = 40, kAnswerMax = 56;

struct Mode {
  std::string name;
  std::vector<std::string> flags;
};

// A prefill node's pool has room for the prompts of all clients; sequences grow on decode nodes.
const std::vector<Mode>& Modes() {
  static const auto& modes = *new std::vector<Mode>{
      {"static batches", {"--prefill=0", "--decode=1", "--batching=static"}},
      {"interleaved", {"--prefill=0", "--decode=1"}},
      {"disaggregated", {"--prefill=1", "--decode=1", "--local-prefill-tokens=0"}},
  };
  return modes;
}

// Where preempted sequences are read back from. Above the disk, in `folder` if it is not empty,
// host memory has room for three of the real model's blocks.
std::vector<Mode> Storages(const std::string& folder) {
  std::vector<Mode> storages = {{"", {}}, {" with host memory", {"--swap-space=64000000"}}};
  if (!folder.empty())
    storages.push_back(
        {" with host memory above a disk",
         {"--swap-space=1200000", "--kv-disk=" + folder, "--kv-disk-bytes=64000000"}});
  return storages;
}

std::vector<v1::GenerateRequest> RandomRequests(std::mt19937_64& random, int count,
                                                int vocabulary) {
  std::vector<v1::GenerateRequest> requests(static_cast<size_t>(count));
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (v1::GenerateRequest& request : requests) {
    const int prompt = between(kPromptMin, kPromptMax);
    for (int i = 0; i < prompt; ++i) request.mutable_tokens()->add_ids(between(0, vocabulary - 1));
    request.mutable_stop()->set_max_tokens(between(kAnswerMin, kAnswerMax));
    request.mutable_stop()->set_ignore_eos(true);
    request.set_return_token_ids(true);
    v1::SamplingParams& sampling = *request.mutable_sampling();
    sampling.set_seed(random());
    sampling.set_logprobs(1);
    sampling.set_temperature(random() % 2 == 0 ? 0 : 0.8);
  }
  return requests;
}

struct Served {
  std::vector<Answer> answers;
  int overtaken_most = 0;  // requests that began after one and ended before it
};

Served ServeAll(TestCluster& cluster, const std::vector<v1::GenerateRequest>& requests) {
  Served served{.answers = std::vector<Answer>(requests.size())};
  std::atomic<size_t> next{0};
  std::atomic<int> clock{0};
  struct Span {
    int begin = 0, end = 0;
  };
  std::vector<Span> spans(requests.size());
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (size_t r = next++; r < requests.size(); r = next++) {
        spans[r].begin = clock++;
        served.answers[r] = cluster.Generate(requests[r]);
        spans[r].end = clock++;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  for (const Span& one : spans) {
    const auto overtook = [&](const Span& other) {
      return other.begin > one.begin && other.end < one.end;
    };
    served.overtaken_most =
        std::max(served.overtaken_most,
                 static_cast<int>(std::count_if(spans.begin(), spans.end(), overtook)));
  }
  return served;
}

v1::NodeCounters DecodeCounters(TestCluster& cluster) {
  const auto status = cluster.client().GetStatus(absl::Seconds(10));
  EXPECT_OK(status.status());
  for (const v1::NodeStatus& node : status->nodes())
    if (node.role() == "decode") return node.counters();
  return {};
}

// Nodes report their counters with their heartbeats.
v1::NodeCounters AwaitTokens(TestCluster& cluster, int64_t tokens) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  v1::NodeCounters counters = DecodeCounters(cluster);
  while (counters.generated_tokens() < tokens && absl::Now() < deadline)
    counters = DecodeCounters(cluster);
  return counters;
}

// `disk_folder`: as Storages'. `overtaken_most`: how often a request was overtaken at most, in any
// mode.
void ExpectEqualAnswers(const std::vector<std::string>& engine, int count, int vocabulary,
                        const std::string& disk_folder, int& overtaken_most) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<v1::GenerateRequest> requests = RandomRequests(random, count, vocabulary);
  int64_t tokens = 0;
  for (const v1::GenerateRequest& request : requests) tokens += request.stop().max_tokens();
  const auto start = [&](std::vector<std::string> flags, int blocks) {
    flags.insert(flags.end(), engine.begin(), engine.end());
    flags.push_back(absl::StrCat("--block-tokens=", kBlockTokens));
    flags.push_back(absl::StrCat("--kv-blocks=", blocks));
    return TestCluster::Start(flags);
  };
  ASSERT_OK_AND_ASSIGN(const auto ample, start(Modes()[1].flags, 16 * kBlocks));
  const Served reference = ServeAll(*ample, requests);
  EXPECT_EQ(AwaitTokens(*ample, tokens).preemptions(), 0);
  EXPECT_EQ(ample->Stop(), "exit code 0");
  for (const Mode& mode : Modes()) {
    for (const Mode& storage : Storages(disk_folder)) {
      const std::string name = mode.name + storage.name;
      SCOPED_TRACE(name);
      std::vector<std::string> flags = mode.flags;
      flags.insert(flags.end(), storage.flags.begin(), storage.flags.end());
      ASSERT_OK_AND_ASSIGN(const auto cluster, start(flags, kBlocks));
      const Served served = ServeAll(*cluster, requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_OK(served.answers[i].status) << "request " << i;
        EXPECT_EQ(served.answers[i].tokens, reference.answers[i].tokens) << "request " << i;
        EXPECT_EQ(served.answers[i].logprobs, reference.answers[i].logprobs) << "request " << i;
      }
      // A first token comes from the prefill node.
      const v1::NodeCounters counters = AwaitTokens(*cluster, tokens - count);
      std::printf(
          "%s: %ld preemptions, %ld blocks read back from host memory, %ld from disk, overtaken %d "
          "times at most\n",
          name.c_str(), static_cast<long>(counters.preemptions()),
          static_cast<long>(counters.host_memory().blocks_read()),
          static_cast<long>(counters.disk().blocks_read()), served.overtaken_most);
      EXPECT_GT(counters.preemptions(), 0);
      overtaken_most = std::max(overtaken_most, served.overtaken_most);
      EXPECT_EQ(cluster->Stop(), "exit code 0");
    }
  }
}

TEST(Oversubscribed, TheHashEngineGivesEqualAnswersInEachMode) {
  int overtaken_most = 0;
  ExpectEqualAnswers({"--engine=hash", "--hash-step-time=5ms"}, kRequests, 200, "", overtaken_most);
  // All that run when a request arrives may end before it, and as many again: while it waits for
  // room others are taken in, until it has waited for a second, which is 200 steps at most.
  EXPECT_LE(overtaken_most, 2 * kClients);
}

TEST(Oversubscribed, TheRealModelGivesEqualAnswersInEachMode) {
  if (const auto path = model::ResolveModelPath("smollm2", config::Environment()); !path.ok()) {
    GTEST_SKIP() << path.status();
  }
  const TestFolder folder("oversubscribed");
  int overtaken_most = 0;
  ExpectEqualAnswers({"--model=smollm2"}, kRequestsOfModel, 49152, folder.path(), overtaken_most);
}

}  // namespace
}  // namespace tandem::testing
