// Goal: the policy `cost` predicts times as its header says, chooses by them, draws among equal
// choices, follows measured links and disks, and survives nodes that say nonsense or lie.
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "router/placement/stored_tokens.h"
#include "tests/unit/router/cost_placement_fixture.h"

namespace tandem::router {
namespace {

TEST_F(CostPlacementTest, PredictsTheSumOfWaitAndCompute) {
  Decode(0);
  Node& prefill = Prefill(0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, prefill.key);
  // One step of 100 rows.
  EXPECT_NEAR(absl::ToDoubleMicroseconds(placement_.first_token_predicted), 500 + 100 * kRowUs, 1);
  const PromptWork::Entry work = fleet_.PrefillPlaced(prefill.key, 200, 200);
  EXPECT_EQ(work.us, 500 + 200 * kRowUs);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Shown("p0", "wait"), work.us / 1e3, 1e-6);
  EXPECT_NEAR(Shown("p0", "first token"), (work.us + 500 + 100 * kRowUs) / 1e3, 1e-3);
  // The prompt that runs gets shorter while time passes, and is not over before the node says so.
  fleet_.SetNow(kNow + absl::Milliseconds(150));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Shown("p0", "wait"), work.us / 1e3 - 150, 1e-6);
  fleet_.SetNow(kNow + absl::Seconds(9));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(Shown("p0", "wait"), 0);
  fleet_.PrefillEnded(prefill.key, 200, work);
  EXPECT_EQ(prefill.work.us(), 0);
}

TEST_F(CostPlacementTest, TheLeastWaitWinsAndAPrefixIsWorthItsComputation) {
  Node& decode = Decode(0);
  Node& busy = Prefill(0);
  Node& idle = Prefill(1);
  fleet_.PrefillPlaced(busy.key, 60, 60);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, idle.key);
  // 80 tokens that the busy node holds cost less to wait for than to compute, or to fetch.
  Measure(busy, idle, 0.5);
  MeasureToDecode(decode);
  index_.Store(busy.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, busy.key);
  EXPECT_EQ(placement_.prefill_cached_tokens, 80);
  fleet_.PrefillPlaced(busy.key, 60, 60);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, idle.key);
}

// A hot prefix is replicated where the queue before its holder costs more than copying it once.
TEST_F(CostPlacementTest, AQueueBeforeTheHolderSendsThePromptElsewhereWhichFetches) {
  Decode(0);
  Node& holder = Prefill(0);
  Node& idle = Prefill(1);
  Measure(holder, idle, 100);  // 80 tokens of 1,000 bytes: 0.8 ms
  index_.Store(holder.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, holder.key) << "no queue: nothing is copied";
  fleet_.PrefillPlaced(holder.key, 10, 10);  // 10.5 ms
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, idle.key);
  // With the messages that a fetch takes, and half of the step that the holder runs.
  EXPECT_NEAR(Shown("p1", "fetch"), 0.8 + 1 + 10.5 / 2, 0.1);
  EXPECT_NEAR(Shown("p1", "compute"), (500 + 20 * kRowUs) / 1e3, 0.1);
}

TEST_F(CostPlacementTest, ADecodeNodeComputesThePromptWhereThatCostsLess) {
  Node& decode = Decode(0);
  Node& prefill = Prefill(0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_TRUE(placement_.prefill.has_value()) << "another request will come";
  // A long queue before the only prefill node, and an idle decode node.
  fleet_.PrefillPlaced(prefill.key, 5000, 5000);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_FALSE(placement_.prefill.has_value());
  EXPECT_GE(placement_.local_prefill_tokens_max, 100);
  EXPECT_NEAR(placement_.local_prefill_us, 500 + 100 * kRowUs, 1);
  // Ten sequences there would each wait for these rows.
  for (int i = 0; i < 60; ++i) fleet_.DecodePlaced(decode.key, 0);
  decode.max_sequences = 100;
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_TRUE(placement_.prefill.has_value());
}

// Up to --local-prefill-tokens (8 here), only the sequences that are there count as disturbed.
TEST_F(CostPlacementTest, AShortPromptIsWeighedTooButDisturbsNobodyWhoMayCome) {
  Node& decode = Decode(0);
  Node& prefill = Prefill(0);
  MeasureToDecode(decode);
  ASSERT_EQ(Place(8), std::nullopt);
  EXPECT_FALSE(placement_.prefill.has_value()) << "an idle node saves the way there and back";
  ASSERT_EQ(Place(9), std::nullopt);
  EXPECT_TRUE(placement_.prefill.has_value());
  // One that generates would wait 8 ms; the way costs about 1 ms.
  fleet_.DecodePlaced(decode.key, 0);
  ASSERT_EQ(Place(8), std::nullopt);
  EXPECT_EQ(placement_.prefill, prefill.key);
  EXPECT_LT(placement_.local_prefill_tokens_max, 8);
  // It waits less long than this prompt would before the prefill node.
  fleet_.PrefillPlaced(prefill.key, 100, 100);
  ASSERT_EQ(Place(8), std::nullopt);
  EXPECT_FALSE(placement_.prefill.has_value());
}

TEST_F(CostPlacementTest, WithoutLocalPrefillPrefillNodesComputeAllPrompts) {
  Node& decode = Decode(0);
  Node& prefill = Prefill(0);
  local_prefill_tokens_ = 0;
  fleet_.PrefillPlaced(prefill.key, 5000, 5000);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, prefill.key);
  EXPECT_EQ(placement_.local_prefill_tokens_max, 0);
  // Unless none may take the prompt: the pair's transfers failed.
  for (int i = 0; i < 2; ++i) fleet_.KvTransferFailed(prefill.key, decode.key, kNow);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_FALSE(placement_.prefill.has_value());
  EXPECT_GE(placement_.local_prefill_tokens_max, 100);
}

TEST_F(CostPlacementTest, HarmSpreadsSequencesOverDecodeNodes) {
  Node& d0 = Decode(0);
  Node& d1 = Decode(1);
  Prefill(0);
  for (int i = 0; i < 3; ++i) fleet_.DecodePlaced(d0.key, 0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.decode, d1.key);
  EXPECT_GT(Shown("d0", "harm"), Shown("d1", "harm"));
  // A node whose pool is too small for the answer would preempt a sequence.
  v1::NodeLoad full = d1.load;
  full.set_blocks_free(26);  // 101 tokens take 26 blocks, the answer 4 more
  const double before = Shown("d1", "harm");
  fleet_.OnLoad(d1, full);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_NEAR(Shown("d1", "harm") - before, (500 + 100 * kRowUs) / 1e3, 1);
}

TEST_F(CostPlacementTest, EqualChoicesAreDrawnAndOthersAreNot) {
  for (int i = 0; i < 3; ++i) Decode(i);
  for (int i = 0; i < 3; ++i) Prefill(i);
  fleet_.PrefillPlaced(NodeKey(102), 50, 50);
  const auto random = NewSeededRandom(5);
  std::map<std::pair<uint64_t, uint64_t>, int> placed;
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(Place(100, *random), std::nullopt);
    ++placed[{placement_.decode.value(), placement_.prefill->value()}];
  }
  EXPECT_EQ(placed.size(), 6u) << "three decode nodes, two prefill nodes";
  for (const auto& [pair, count] : placed) EXPECT_GT(count, 350) << pair.first << pair.second;
}

TEST_F(CostPlacementTest, BlocksOnDiskCostTheirReading) {
  Decode(0);
  Node& disk = Prefill(0);
  Node& memory = Prefill(1);
  const auto hashes = HashesOf(Tokens(100));
  const auto held = absl::MakeConstSpan(hashes).first(80 / kBlockTokens);
  StorePartlyOnDisk(disk, held);
  index_.Store(memory.slot, held);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, memory.key);
  EXPECT_GT(Shown("p0", "read"), 1);
  EXPECT_NEAR(Shown("p0", "compute"), (500 + 20 * kRowUs) / 1e3, 1e-6);
  EXPECT_EQ(Shown("p1", "read"), 0);
  fleet_.PrefillPlaced(memory.key, 50, 50);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, disk.key) << "reading is cheaper than 50 ms";
}

TEST_F(CostPlacementTest, ReportedDiskRatesCountAndLiesAboutThemAreBounded) {
  Decode(0);
  Node& disk = Prefill(0);
  disk.kv_bytes_per_token = 1e6;
  const auto hashes = HashesOf(Tokens(100));
  index_.Store(disk.slot, absl::MakeConstSpan(hashes).first(80 / kBlockTokens), Tier::kDisk);
  v1::NodeLoad load = disk.load;
  load.set_blocks_stored(20);
  fleet_.OnLoad(disk, load);
  const auto read_ms = [&](const cost::CopyProfile& read) {
    fleet_.OnStorageCost(disk, {.disk = cost::TierProfile{.read = read}});
    EXPECT_EQ(Place(100), std::nullopt);
    return Shown("p0", "read");
  };
  // 80 MB; computing them takes 80 ms.
  EXPECT_NEAR(read_ms({.fixed_us = 500, .bytes_per_second = 2e9, .samples = 9}), 40.5, 1e-6);
  EXPECT_EQ(read_ms({.fixed_us = 500, .bytes_per_second = 0.9e9, .samples = 9}), 0)
      << "it is computed";
  // A node that has read nothing yet: an assumed rate, at which computing is quicker.
  EXPECT_EQ(read_ms({.bytes_per_second = 1e18}), 0);
  // A disk that costs nothing, or is faster than memory.
  EXPECT_NEAR(read_ms({.samples = 9}), 0.16, 1e-6);
  EXPECT_NEAR(read_ms({.bytes_per_second = 1e18, .samples = 9}), 0.16, 1e-6);
}

TEST_F(CostPlacementTest, EachTiersTokensCountAtItsRate) {
  Decode(0);
  Node& node = Prefill(0);
  node.kv_bytes_per_token = 1e6;
  const auto hashes = HashesOf(Tokens(100));
  const int blocks = 80 / kBlockTokens;
  v1::NodeLoad load = node.load;
  load.set_blocks_stored(blocks);
  fleet_.OnLoad(node, load);
  const auto profile = [](double bytes_per_second) {
    return cost::TierProfile{.read = {.bytes_per_second = bytes_per_second, .samples = 9}};
  };
  fleet_.OnStorageCost(node, {.host = profile(8e9), .disk = profile(2e9)});
  // 8 tokens a millisecond from host memory and 2 from disk, whichever of them comes first.
  for (const bool disk_first : {true, false}) {
    for (int changes = 0; changes <= blocks; ++changes) {
      const auto held = absl::MakeConstSpan(hashes).first(static_cast<size_t>(blocks));
      const auto split = static_cast<size_t>(changes);
      index_.Store(node.slot, held.first(split), disk_first ? Tier::kDisk : Tier::kHost);
      index_.Store(node.slot, held.subspan(split), disk_first ? Tier::kHost : Tier::kDisk);
      const int on_disk = kBlockTokens * (disk_first ? changes : blocks - changes);
      const ReadTokens stored = StoredTokens(index_, node, 80, hashes);
      ASSERT_EQ(stored.disk, on_disk) << changes;
      ASSERT_EQ(stored.host, 80 - on_disk) << changes;
      ASSERT_EQ(Place(100), std::nullopt);
      EXPECT_NEAR(Shown("p0", "read"), (80 - on_disk) / 8.0 + on_disk / 2.0, 1e-6);
      EXPECT_NEAR(Shown("p0", "read host"), (80 - on_disk) / 8.0, 1e-6);
      const v1::PlacementCandidate& shown = placement_.decision->prefill_nodes(0);
      EXPECT_EQ(shown.disk_tokens(), on_disk);
      EXPECT_EQ(shown.host_memory_tokens(), 80 - on_disk);
    }
  }
}

TEST_F(CostPlacementTest, APartOfWhatIsStoredIsOfEachTierInProportion) {
  const ReadTokens stored = {.host = 60, .disk = 20};
  EXPECT_EQ(stored.Part(100).host, 60);
  EXPECT_EQ(stored.Part(100).disk, 20);
  EXPECT_EQ(stored.Part(40).host, 30);
  EXPECT_EQ(stored.Part(40).disk, 10);
  EXPECT_EQ(stored.Part(-1).total(), 0);
  EXPECT_EQ(ReadTokens{}.Part(0).total(), 0);
}

TEST_F(CostPlacementTest, ANodesLargestBatchDecidesHowOftenAStepsFixedPartCounts) {
  Decode(0);
  Node& node = Prefill(0);
  const auto compute_ms = [&](int32_t rows) {
    node.max_batch_tokens = rows;
    EXPECT_EQ(Place(100), std::nullopt);
    return Shown("p0", "compute");
  };
  EXPECT_NEAR(compute_ms(0), 100 + 0.5, 1e-6);
  EXPECT_NEAR(compute_ms(100), 100 + 0.5, 1e-6);
  EXPECT_NEAR(compute_ms(99), 100 + 2 * 0.5, 1e-6);
  EXPECT_NEAR(compute_ms(1), 100 + 100 * 0.5, 1e-6);
}

TEST_F(CostPlacementTest, AFetchTakesItsMessagesItsHoldersStepAndTheWire) {
  Node& decode = Decode(0);
  Node& prefill = Prefill(0);
  Measure(decode, prefill, 2);
  const FetchTimes idle = fleet_.Fetching(decode, prefill, 20, 80, {});
  EXPECT_NEAR(idle.saved_us, 80 * kRowUs, 1) << "without the fixed part of a step";
  EXPECT_NEAR(idle.fetch_us, 1000 + 80 * 1000 / 2.0, 1000);
  EXPECT_TRUE(idle.pays());
  // The holder waits for prompts, and a message does not wait.
  for (int i = 0; i < 10; ++i) fleet_.DecodePlaced(decode.key, 0);
  EXPECT_NEAR(fleet_.Fetching(decode, prefill, 20, 80, {}).fetch_us, idle.fetch_us, 1);
  // The holder runs steps: a message waits for half of one.
  decode.load.set_sequences_running(10);
  const FetchTimes busy = fleet_.Fetching(decode, prefill, 20, 80, {});
  EXPECT_NEAR(busy.fetch_us - idle.fetch_us, (500 + 10 * 100) / 2.0, 1);
  // One block of a fast node is not worth the messages.
  cost::StepProfile fast = Profile();
  fast.prompt_row_us = 10;
  fleet_.OnStepCost(prefill, fast);
  EXPECT_FALSE(fleet_.Fetching(decode, prefill, 20, kBlockTokens, {}).pays());
}

TEST_F(CostPlacementTest, AFetchFromAHoldersDiskCostsItsReading) {
  Node& disk = Decode(0);
  Node& prefill = Prefill(0);
  Measure(disk, prefill, 1e3);
  const auto hashes = HashesOf(Tokens(100));
  const auto held = absl::MakeConstSpan(hashes).first(80 / kBlockTokens);
  StorePartlyOnDisk(disk, held);
  const int64_t on_disk = 80 - 5 * kBlockTokens;
  const auto fetch_ms = [&](double disk_bytes_per_second) {
    fleet_.OnStorageCost(
        disk,
        {.disk = cost::TierProfile{
             .read = {.fixed_us = 500, .bytes_per_second = disk_bytes_per_second, .samples = 9}}});
    EXPECT_EQ(Place(100), std::nullopt);
    return Shown("p0", "fetch");
  };
  const double wire_ms = fleet_.Fetching(disk, prefill, 0, 80, {}).fetch_us / 1e3;
  // A token has 1000 bytes, and computing it takes a millisecond.
  EXPECT_NEAR(fetch_ms(1e7), wire_ms + 0.5 + static_cast<double>(on_disk) / 10, 1e-6);
  EXPECT_EQ(fetch_ms(0.5e6), 0) << "it is computed";
  // Of two that hold as much, the one that holds it in memory.
  Node& memory = Decode(1);
  Measure(memory, prefill, 1e3);
  index_.Store(memory.slot, held);
  EXPECT_NEAR(fetch_ms(0.5e6), fleet_.Fetching(memory, prefill, 0, 80, {}).fetch_us / 1e3, 1e-6);
}

TEST_F(CostPlacementTest, ACostModelFedNonsenseIsNotUsed) {
  Decode(0);
  Node& node = Prefill(0);
  const double inf = std::numeric_limits<double>::infinity();
  for (const cost::StepProfile& nonsense :
       {cost::StepProfile{}, cost::StepProfile{.step_us = 1e300, .prompt_row_us = 1e300},
        cost::StepProfile{.prompt_row_us = 1e12}, cost::StepProfile{.step_us = -5},
        cost::StepProfile{.prompt_row_us = std::nan("")},
        cost::StepProfile{.prompt_row_us = 1, .generated_row_us = inf}}) {
    fleet_.OnStepCost(node, nonsense);
    EXPECT_FALSE(node.knows_its_cost());
    ASSERT_EQ(Place(100), std::nullopt);
    // The last usable profile of a prefill node counts.
    EXPECT_NEAR(Shown("p0", "compute"), (500 + 100 * kRowUs) / 1e3, 1);
    EXPECT_EQ(node.PredictedPrefillWait(100, {}, kNow), absl::ZeroDuration());
  }
  // Errors that are no numbers do not make every choice equal.
  cost::StepProfile vague = Profile();
  vague.median_relative_error = std::nan("");
  fleet_.OnStepCost(node, vague);
  Node& busy = Prefill(1);
  fleet_.PrefillPlaced(busy.key, 50, 50);
  const auto random = NewSeededRandom(6);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(Place(100, *random), std::nullopt);
    EXPECT_EQ(placement_.prefill, node.key);
  }
}

TEST_F(CostPlacementTest, BeforeAnyNodeSaysWhatItCostsADefaultDecides) {
  for (int i = 0; i < 2; ++i)
    index_.AddNode(fleet_
                       .Join(NodeKey(1 + i),
                             TestRegistration(absl::StrCat("d", i), v1::NODE_ROLE_DECODE), kNow)
                       .slot,
                   kDecodeNodes, 1000);
  Node& p0 = fleet_.Join(NodeKey(10), TestRegistration("p0", v1::NODE_ROLE_PREFILL), kNow);
  Node& p1 = fleet_.Join(NodeKey(11), TestRegistration("p1", v1::NODE_ROLE_PREFILL), kNow);
  for (const Node* node : {&p0, &p1}) index_.AddNode(node->slot, kPrefillNodes, 1000);
  fleet_.PrefillPlaced(p0.key, 300, 300);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, p1.key);
  EXPECT_GT(placement_.first_token_predicted, absl::ZeroDuration());
}

// A node that says it holds blocks and does not.
TEST_F(CostPlacementTest, ANodeThatLiesAboutItsBlocksLosesItsAdvantageForAWhile) {
  Node& decode = Decode(0);
  Node& liar = Prefill(0);
  Node& honest = Prefill(1);
  Measure(liar, honest, 0.5);  // fetching pays nowhere
  MeasureToDecode(decode);
  index_.Store(liar.slot, absl::MakeConstSpan(HashesOf(Tokens(100))).first(80 / kBlockTokens));
  fleet_.PrefillPlaced(liar.key, 50, 50);
  ASSERT_EQ(Place(100), std::nullopt);
  ASSERT_EQ(placement_.prefill, liar.key);
  int lies = 0;
  while (placement_.prefill == liar.key && lies < 20) {
    ++lies;
    fleet_.PrefixChecked(liar.key, 80, 0);
    ASSERT_EQ(Place(100), std::nullopt);
  }
  EXPECT_EQ(placement_.prefill, honest.key);
  EXPECT_LE(lies, 3);
  fleet_.SetNow(kNow + 8 * NodeRecord::kHalfLife);
  liar.work = {};
  fleet_.PrefillPlaced(liar.key, 50, 50);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(placement_.prefill, liar.key) << "it gets another chance";
}

// A node that says that its steps cost nearly nothing.
TEST_F(CostPlacementTest, ANodeWhoseTokensComeLateGetsLess) {
  Decode(0);
  Node& boaster = Prefill(0);
  Node& honest = Prefill(1);
  cost::StepProfile free = Profile();
  free.step_us = free.prompt_row_us = 1e-3;
  fleet_.OnStepCost(boaster, free);
  ASSERT_EQ(Place(100), std::nullopt);
  ASSERT_EQ(placement_.prefill, boaster.key);
  int late = 0;
  while (placement_.prefill == boaster.key && late < 20) {
    ++late;
    fleet_.FirstTokenCame(boaster.key, placement_.first_token_predicted, absl::Seconds(1));
    ASSERT_EQ(Place(100), std::nullopt);
  }
  EXPECT_EQ(placement_.prefill, honest.key);
  EXPECT_LE(late, 2);
  EXPECT_GT(Shown("p0", "late"), 100);
  // A prediction that was off by less than half is not held against a node.
  fleet_.FirstTokenCame(honest.key, absl::Milliseconds(100), absl::Milliseconds(180));
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_EQ(Shown("p1", "late"), 0);
}

TEST_F(CostPlacementTest, NothingIsPlacedThatWouldComeTooLate) {
  Node& decode = Decode(0);
  Node& prefill = Prefill(0);
  EXPECT_EQ(Place(100, random_, absl::Milliseconds(101)), std::nullopt);
  EXPECT_EQ(Place(100, random_, absl::Milliseconds(100)), PlacementFailure::kTooLate);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(placement_.first_token_predicted), 100.5, 0.1);
  EXPECT_EQ(Place(100, random_, absl::ZeroDuration()), PlacementFailure::kTooLate);
  // A decode node whose sixty sequences would pay for it could bring the token in time: it does
  // not.
  fleet_.PrefillPlaced(prefill.key, 500, 500);
  decode.max_sequences = 100;
  for (int i = 0; i < 60; ++i) fleet_.DecodePlaced(decode.key, 0);
  ASSERT_EQ(Place(100), std::nullopt);
  EXPECT_TRUE(placement_.prefill.has_value());
  EXPECT_EQ(Place(100, random_, absl::Milliseconds(200)), PlacementFailure::kTooLate);
}

TEST_F(CostPlacementTest, APromptWaitsInTheRouterForAPrefillNodeThatIsBusyForLong) {
  Node& decode = Decode(0);
  decode.max_sequences = 100;
  for (int i = 0; i < 60; ++i) fleet_.DecodePlaced(decode.key, 0);
  Node& prefill = Prefill(0);
  prefill_wait_max_ = absl::Milliseconds(100);
  fleet_.PrefillPlaced(prefill.key, 101, 101);
  EXPECT_EQ(Place(100), PlacementFailure::kPrefillBusy);
  fleet_.SetNow(kNow + absl::Milliseconds(10));
  EXPECT_EQ(Place(100), std::nullopt) << "its prompt has advanced";
}

// An urgent prompt waits for what the node computes before it, and for the step that runs.
TEST_F(CostPlacementTest, UrgentPromptsWaitOnlyForThoseBeforeThem) {
  Decode(0).max_sequences = 100;
  Node& prefill = Prefill(0);
  prefill.max_batch_tokens = 64;
  local_prefill_tokens_ = 0;
  prefill_wait_max_ = absl::Milliseconds(150);
  fleet_.PrefillPlaced(prefill.key, 40, 40, {.due_within = absl::Seconds(1)});
  fleet_.PrefillPlaced(prefill.key, 400, 400);  // no due time
  EXPECT_EQ(Place(100), PlacementFailure::kPrefillBusy);
  const auto wait_ms = [&](const request::Urgency& urgency) {
    urgency_ = urgency;
    if (Place(100, random_, absl::Milliseconds(250)) != std::nullopt) return -1.0;
    return Shown("p0", "wait");
  };
  EXPECT_NEAR(wait_ms({.due_within = absl::Seconds(2)}), 40.5, 0.1);
  const double step_ms = wait_ms({.due_within = absl::Milliseconds(500)});
  EXPECT_NEAR(step_ms, prefill.HalfStepUs() / 1e3, 0.1) << "it is the next, a step runs";
  EXPECT_EQ(wait_ms({.priority = -25}), step_ms) << "a level of priority is worth a second";
  // A node that keeps the order of arrival, and other routers' prompts.
  prefill.queue_order = request::QueueOrder::kArrival;
  EXPECT_EQ(Place(100), PlacementFailure::kPrefillBusy);
  prefill.queue_order = request::QueueOrder::kPriority;
  v1::NodeLoad load = prefill.load;
  load.set_prefill_tokens_waiting(440 + 500);
  fleet_.OnLoad(prefill, load);
  EXPECT_EQ(Place(100), PlacementFailure::kPrefillBusy);
}

}  // namespace
}  // namespace tandem::router
