// Goal: in virtual time, with frames of the KV plane delayed, reordered, lost, duplicated and
// corrupted, every accepted request gets exactly the tokens that the oracle computes from its
// prompt; afterwards no block, lease or export is left. The seed of a failure is printed and
// repeats it.
#include "sim/sim_cluster.h"

#include <random>

#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

using testing::IsOk;

router::RequestInput RandomRequest(World& world, int index) {
  router::RequestInput input;
  input.id = RequestId(absl::StrCat("r", index));
  // A few common beginnings, so that prefixes are shared.
  const uint64_t family = world.random().Below(3);
  const uint64_t shared = world.random().Below(100), own = 1 + world.random().Below(150);
  for (uint64_t i = 0; i < shared; ++i)
    input.prompt.push_back(static_cast<TokenId>((family * 31 + i * 7) % 256));
  for (uint64_t i = 0; i < own; ++i)
    input.prompt.push_back(static_cast<TokenId>(world.random().Below(256)));
  input.sampling.temperature = world.Chance(2) ? 0.0 : 1.0;
  input.sampling.seed = world.random().Next();
  input.stop.max_tokens = 1 + static_cast<int>(world.random().Below(40));
  input.eos_token_ids = {258};
  return input;
}

std::vector<TokenId> Oracle(const SimClusterOptions& options, const router::RequestInput& input) {
  std::vector<TokenId> tokens = input.prompt;
  for (int i = 0; i < input.stop.max_tokens; ++i) {
    tokens.push_back(engine::HashEngineNextToken(options.engine, tokens, input.sampling, 0));
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(input.prompt.size()), tokens.end()};
}

bool AllIdle(SimCluster& cluster) {
  for (SimNode* node : cluster.nodes()) {
    if (!node->core().idle()) return false;
  }
  return cluster.router().requests_running() == 0;
}

void ExpectNothingLeft(SimCluster& cluster) {
  for (SimNode* node : cluster.nodes()) {
    const v1::NodeLoad load = node->core().load();
    EXPECT_EQ(load.blocks_used(), 0) << node->name();
    EXPECT_EQ(load.blocks_quarantined(), 0) << node->name();
    EXPECT_EQ(load.leases(), 0) << node->name();
    EXPECT_EQ(load.exports(), 0) << node->name();
    EXPECT_EQ(load.blocks_free() + load.blocks_cached(), load.blocks_total()) << node->name();
    const transfer::TransferCounters counters = node->endpoint().counters();
    EXPECT_EQ(counters.leases_open, 0) << node->name();
    EXPECT_EQ(counters.exports_open, 0) << node->name();
    const v1::NodeCounters c = node->core().counters();
    EXPECT_EQ(
        c.prompt_tokens().computed() + c.prompt_tokens().received() + c.prompt_tokens().cached(),
        c.prompt_tokens_total())
        << node->name();
  }
}

void RunSchedule(uint64_t seed, bool with_cancels) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  World world(seed);
  SimClusterOptions options;
  options.prefill_nodes = static_cast<int>(world.random().Below(3));
  options.decode_nodes = 1 + static_cast<int>(world.random().Below(3));
  options.blocks_per_node = 40 + static_cast<int64_t>(world.random().Below(200));
  options.max_batch_tokens = 16 + static_cast<int64_t>(world.random().Below(100));
  if (world.Chance(2)) {
    options.kv_faults.drop_one_in = 20 + world.random().Below(50);
    options.kv_faults.duplicate_one_in = 10 + world.random().Below(50);
    options.kv_faults.corrupt_one_in = 20 + world.random().Below(50);
  }
  SimCluster cluster(world, options);
  world.RunUntil(world.now() + absl::Milliseconds(20));
  std::vector<router::RequestInput> requests;
  for (int i = 0; i < 30; ++i) {
    requests.push_back(RandomRequest(world, i));
    ASSERT_OK(cluster.Submit(requests.back()));
    world.RunUntil(world.now() + world.RandomDelay(absl::Milliseconds(20)));
    if (with_cancels && world.Chance(4)) {
      cluster.Cancel(requests[world.random().Below(requests.size())].id);
    }
  }
  const absl::Time deadline = world.now() + absl::Minutes(10);
  while (world.now() < deadline && !AllIdle(cluster))
    world.RunUntil(world.now() + absl::Milliseconds(10));

  for (const router::RequestInput& request : requests) {
    const ClientView& view = cluster.client(request.id);
    EXPECT_EQ(view.ends, 1) << request.id;
    EXPECT_FALSE(view.out_of_order) << request.id;
    EXPECT_OK(view.status) << request.id;
    const std::vector<TokenId> oracle = Oracle(options, request);
    if (view.done.reason == request::FinishReason::kAborted && with_cancels) {
      ASSERT_LE(view.tokens.size(), oracle.size());
      EXPECT_TRUE(std::equal(view.tokens.begin(), view.tokens.end(), oracle.begin())) << request.id;
    } else {
      EXPECT_EQ(view.tokens, oracle) << request.id;
      EXPECT_EQ(view.done.reason, request::FinishReason::kLength) << request.id;
    }
  }
  ExpectNothingLeft(cluster);
}

TEST(SimCluster, OneRequestCrossesTheVirtualNetwork) {
  World world(1);
  SimClusterOptions options;
  SimCluster cluster(world, options);
  world.RunUntil(world.now() + absl::Milliseconds(20));
  router::RequestInput request = RandomRequest(world, 0);
  request.prompt.resize(200, 65);  // long enough to need the prefill node
  ASSERT_OK(cluster.Submit(request));
  while (!cluster.Settled(request.id)) ASSERT_TRUE(world.RunOne());
  const ClientView& view = cluster.client(request.id);
  EXPECT_EQ(view.tokens, Oracle(options, request));
  EXPECT_EQ(view.done.route.prefill_node(), "prefill-0");
  EXPECT_EQ(view.done.route.decode_node(), "decode-0");
  EXPECT_EQ(view.done.route.decode_tokens().received(), 200);
  EXPECT_GT(view.done.route.kv_bytes_moved(), 0);
}

TEST(SimCluster, EqualSeedsRunTheSameEvents) {
  const auto run = [] {
    World world(77);
    SimClusterOptions options;
    options.kv_faults.drop_one_in = 10;
    SimCluster cluster(world, options);
    for (int i = 0; i < 10; ++i) EXPECT_OK(cluster.Submit(RandomRequest(world, i)));
    world.RunUntil(world.now() + absl::Seconds(5));
    return std::make_pair(world.events_run(), cluster.network().frames_sent());
  };
  EXPECT_EQ(run(), run());
}

TEST(SimCluster, RandomSchedulesKeepEveryPromise) {
  std::random_device device;
  for (int i = 0; i < 60; ++i) RunSchedule((uint64_t{device()} << 32) | device(), false);
}

TEST(SimCluster, RandomSchedulesWithCancelsLeaveNothingBehind) {
  std::random_device device;
  for (int i = 0; i < 60; ++i) RunSchedule((uint64_t{device()} << 32) | device(), true);
}

}  // namespace
}  // namespace tandem::sim
