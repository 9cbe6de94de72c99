// Goal: one prefill core and one decode core, driven by a small router over a fake KV plane with
// hash engines, deliver exactly the oracle's stream to every client, for random prompts, chunk
// sizes and pool sizes, with shared prefixes, preemption, aborts, lost senders, failed steps, lost
// routers and a drain; blocks are conserved at every event and all counts end at their baseline.
#include "tests/unit/node/cluster.h"

#include <cstdlib>
#include <iostream>
#include <random>

namespace tandem::node {
namespace {

// Runs a scenario under a few seeds; TANDEM_TEST_SEED replays one.
template <typename Check>
void RunSeeds(const Scenario& scenario, const Check& check) {
  const char* replay = std::getenv("TANDEM_TEST_SEED");
  const uint64_t base =
      replay != nullptr ? std::strtoull(replay, nullptr, 10) : std::random_device()();
  const int count = replay != nullptr ? 1 : 8;
  for (uint64_t seed = base; seed < base + count; ++seed) {
    std::cout << "seed " << seed << std::endl;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Cluster cluster(scenario, seed);
    cluster.Run();
    check(cluster);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Cluster, StreamsEqualTheOracleAndPrefixesAreReused) {
  RunSeeds({.prefill_blocks = 1024, .decode_blocks = 1024}, [](Cluster& cluster) {
    for (const Client& c : cluster.clients()) EXPECT_EQ(c.state, Client::kDone);
    const v1::NodeCounters prefill = cluster.prefill_resources().counters();
    const v1::NodeCounters decode = cluster.decode_resources().counters();
    EXPECT_GT(prefill.prompt_tokens().cached(), 0);
    EXPECT_GT(prefill.prompt_tokens().computed(), 0);
    EXPECT_EQ(prefill.prompt_tokens().received(), 0);
    EXPECT_GT(decode.prompt_tokens().received(), 0);
    EXPECT_GT(decode.prompt_tokens().cached(), 0);
    EXPECT_GT(decode.prompt_tokens().computed(), 0);
    EXPECT_EQ(decode.kv_bytes_received(), cluster.bytes_copied());
    EXPECT_EQ(prefill.kv_bytes_sent(), cluster.bytes_copied());
    EXPECT_EQ(decode.preemptions(), 0);
  });
}

TEST(Cluster, PreemptionByRecomputeKeepsTheStreams) {
  const Scenario scenario{.prefill_blocks = 24,
                          .decode_blocks = 16,
                          .max_batch_tokens = 16,
                          .prompt_tokens_max = 40,
                          .output_tokens_max = 120};
  int64_t preemptions = 0;
  RunSeeds(scenario, [&](Cluster& cluster) {
    for (const Client& c : cluster.clients()) EXPECT_EQ(c.state, Client::kDone);
    preemptions += cluster.decode_resources().counters().preemptions();
    EXPECT_EQ(cluster.prefill_resources().counters().preemptions(), 0);
  });
  EXPECT_GT(preemptions, 0);
}

TEST(Cluster, ChunksAndBatchesOfAnySizeGiveTheSameStreams) {
  for (const int64_t rows : {1, 3, 17, 1000}) {
    RunSeeds({.max_batch_tokens = rows, .max_sequences = 5, .clients = 12}, [](Cluster& cluster) {
      for (const Client& c : cluster.clients()) EXPECT_EQ(c.state, Client::kDone);
    });
  }
}

TEST(Cluster, AbortsAtAnyPointFreeEverything) {
  RunSeeds({.decode_blocks = 48, .clients = 80, .lateness = 6, .abort_every = 12},
           [](Cluster& cluster) {
             int aborted = 0;
             for (const Client& c : cluster.clients()) aborted += c.state == Client::kAborted;
             EXPECT_GT(aborted, 0);
           });
}

TEST(Cluster, LostSendersAreReplacedUnderTheNextEpoch) {
  RunSeeds({.lateness = 5, .lose_export_every = 15, .lose_lease_every = 15}, [](Cluster& cluster) {
    for (const Client& c : cluster.clients()) EXPECT_EQ(c.state, Client::kDone);
  });
}

TEST(Cluster, FailedStepsLeaveNothingBehind) {
  RunSeeds({.lateness = 2, .fail_step_every = 12}, [](Cluster& cluster) {
    for (const Client& c : cluster.clients()) EXPECT_EQ(c.state, Client::kDone);
  });
}

TEST(Cluster, EverythingAtOnce) {
  RunSeeds({.prefill_blocks = 40,
            .decode_blocks = 24,
            .max_batch_tokens = 24,
            .max_sequences = 6,
            .output_tokens_max = 80,
            .clients = 60,
            .lateness = 5,
            .abort_every = 60,
            .lose_export_every = 50,
            .lose_lease_every = 50,
            .fail_step_every = 60,
            .lose_router_every = 200},
           [](Cluster&) {});
}

TEST(Cluster, DrainRefusesNewLegsAndLetsRunningOnesEnd) {
  const Scenario scenario;
  Cluster cluster(scenario, 7);
  cluster.drain_after = 5;
  cluster.Run();
  int done = 0;
  for (const Client& c : cluster.clients()) done += c.state == Client::kDone;
  EXPECT_GE(done, 5);
  EXPECT_EQ(done + cluster.drained_refusals(), scenario.clients);
  EXPECT_GT(cluster.drained_refusals(), 0);
}

}  // namespace
}  // namespace tandem::node
