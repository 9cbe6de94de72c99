// Goal: preemption takes the last sequences in order, unless others cost much less for each block
// that they free; what is shared, stored or lent has its price. No sequence goes early more than
// kEarlyMax times, so one that has just come back is not the cheapest for ever; and a pool of a
// quarter of what random requests need gives all of them the tokens of an unlimited one.
#include "common/node/preemption.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/node_ledger.h"
#include "common/node/sequence_scheduler.h"
#include "common/node/stored_blocks.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kBlockTokens = 16;

engine::HashEngineOptions EngineOptions() {
  return {.block_tokens = kBlockTokens, .context_tokens = 1024};
}

// ---- prices, and the choice between them

class FakeStorage : public StoredPrices {
 public:
  // Has the first blocks of what it is asked for.
  Read ReadOf(absl::Span<const kv::BlockHash> hashes) const override {
    if (!only.empty() && hashes.front() != only.front()) return {};
    const int64_t count = std::min(blocks, std::ssize(hashes));
    return {count, us_per_block * static_cast<double>(count)};
  }
  int64_t blocks = 0;
  double us_per_block = 0;
  std::vector<kv::BlockHash> only;  // if not empty: of the sequence that begins so
};

class PreemptionTest : public ::testing::Test {
 protected:
  // A sequence with blocks of its own, behind those of `shared`, and `computed` rows.
  Sequence* Make(int64_t blocks, int64_t computed, const std::string& group = "",
                 const std::vector<BlockId>& shared = {}) {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = SequenceId(sequences_.size() + 1);
    sequence->input.group = group;
    sequence->num_computed = computed;
    sequence->num_sealed = computed / kBlockTokens;
    sequence->hashes.resize(static_cast<size_t>(sequence->num_sealed));
    for (const BlockId block : shared) pool_.Ref(block);
    sequence->blocks = shared;
    const auto own = *pool_.Allocate(blocks);
    sequence->blocks.insert(sequence->blocks.end(), own.begin(), own.end());
    sequences_.push_back(std::move(sequence));
    return sequences_.back().get();
  }
  // Blocks with one reference, which no sequence holds once Unref has taken it.
  std::vector<BlockId> Sealed(int count) {
    const std::vector<BlockId> blocks = *pool_.Allocate(count);
    for (const BlockId block : blocks) pool_.Seal(block, {.high = ++sealed_});
    return blocks;
  }
  void Unref(const std::vector<BlockId>& blocks) {
    for (const BlockId block : blocks) pool_.Unref(block);
  }
  VictimPrices Prices() const {
    return {.spec = spec_, .pool = pool_, .steps = steps_, .stored = stored_};
  }
  VictimCost Price(const std::vector<Sequence*>& members) const {
    return PriceOf(members, Prices());
  }
  // The number of the sequence that goes, of all that were made.
  uint64_t Victim(const std::string& group_of_needy = "") const {
    Sequence needy;
    needy.input.group = group_of_needy;
    std::vector<Sequence*> behind;
    for (const auto& sequence : sequences_) behind.push_back(sequence.get());
    return ChooseVictim(behind, needy, Prices())->id.value();
  }

  const engine::EngineSpec spec_ = (*engine::NewHashEngine(EngineOptions()))->spec();
  // A step by itself is not the victim's cost: its rows join steps that are computed anyway.
  const cost::StepProfile steps_{.step_us = 5000, .prompt_row_us = 10, .samples = 1};
  kv::BlockPool pool_{256};
  const StoredPrices* stored_ = nullptr;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  uint64_t sealed_ = 0;
};

TEST_F(PreemptionTest, RowsAreComputedAgain) {
  const VictimCost cost = Price({Make(4, 60)});
  EXPECT_DOUBLE_EQ(cost.us, 600);
  EXPECT_EQ(cost.blocks, 4);
}

TEST_F(PreemptionTest, WhatOthersUseCostsNothingAndFreesNothing) {
  const std::vector<BlockId> prompt = Sealed(2);
  Sequence* first = Make(2, 60, "request", prompt);
  Sequence* second = Make(3, 70, "request", prompt);
  const VictimCost shared = Price({first, second});
  Unref(prompt);
  EXPECT_DOUBLE_EQ(shared.us, 10 * (28 + 38));
  EXPECT_EQ(shared.blocks, 5);
  EXPECT_DOUBLE_EQ(Price({first}).us, 280);
  EXPECT_EQ(Price({first}).blocks, 2);
  // Together they give back what only they have in common, once.
  EXPECT_DOUBLE_EQ(Price({first, second}).us, 10 * (32 + 28 + 38));
  EXPECT_EQ(Price({first, second}).blocks, 7);
}

TEST_F(PreemptionTest, StoredBlocksCostTheirReadIfThatIsLess) {
  FakeStorage storage;
  stored_ = &storage;
  Sequence* sequence = Make(4, 60);
  EXPECT_DOUBLE_EQ(Price({sequence}).us, 600);
  storage.blocks = 2;
  storage.us_per_block = 7;
  EXPECT_DOUBLE_EQ(Price({sequence}).us, 14 + 280);
  storage.blocks = 100;  // the last rows are no full block
  EXPECT_DOUBLE_EQ(Price({sequence}).us, 21 + 120);
  storage.us_per_block = 1000;
  EXPECT_DOUBLE_EQ(Price({sequence}).us, 600);
}

TEST_F(PreemptionTest, LentUnitsAreLost) {
  Sequence* sequence = Make(2, 60);
  sequence->blocks.insert(sequence->blocks.begin(), 2, engine::kNoBlock);
  sequence->remote.lent = {{.loan = LoanId(1), .units = {0, 1}}};
  const VictimCost cost = Price({sequence});
  EXPECT_DOUBLE_EQ(cost.us, 600);
  EXPECT_EQ(cost.blocks, 2);
}

TEST_F(PreemptionTest, OfSimilarCostsTheLastGoes) {
  for (int i = 0; i < 3; ++i) Make(4, 60);
  EXPECT_EQ(Victim(), 3u);
  sequences_[0]->num_computed = 21;  // more than a third
  EXPECT_EQ(Victim(), 3u);
  sequences_[0]->num_computed = 19;
  EXPECT_EQ(Victim(), 1u);
  sequences_[1]->num_computed = 19;  // equal: the later one
  EXPECT_EQ(Victim(), 2u);
}

TEST_F(PreemptionTest, ASequenceGoesEarlyOnlySoOften) {
  Sequence* cheap = Make(4, 0);
  Make(4, 60);
  cheap->preempted_early = kEarlyMax - 1;
  EXPECT_EQ(Victim(), 1u);
  cheap->preempted_early = kEarlyMax;
  EXPECT_EQ(Victim(), 2u);
  // As the last one it still goes.
  sequences_.pop_back();
  EXPECT_EQ(Victim(), 1u);
}

TEST_F(PreemptionTest, WhatFreesNothingStays) {
  const std::vector<BlockId> prompt = Sealed(2);
  Make(2, 60, "", prompt);
  Make(0, 32, "", prompt);
  EXPECT_EQ(Victim(), 1u);
  Unref(prompt);
  sequences_.erase(sequences_.begin());
  EXPECT_EQ(Victim(), 2u);  // nothing else is left
}

TEST_F(PreemptionTest, ARequestIsWeighedAsAWhole) {
  const std::vector<BlockId> prompt = Sealed(6);
  // Alone each would cost a row for a block; together they cost what they share.
  Make(1, 97, "request", prompt);
  Make(1, 97, "request", prompt);
  Make(4, 60, "other");
  Unref(prompt);
  EXPECT_EQ(Victim(), 3u);
  EXPECT_EQ(Victim("request"), 2u);  // of the needy one's own request, each is alone
}

// ---- the scheduler

// A scheduler and its engine, stepped by hand.
class Node {
 public:
  Node(int64_t blocks, int64_t batch_tokens, int32_t sequences)
      : engine_(*engine::NewHashEngine(EngineOptions())),
        scheduler_({.spec = engine_->spec(),
                    .num_blocks = blocks,
                    .max_batch_tokens = batch_tokens,
                    .max_sequences = sequences}) {
    EXPECT_OK(engine_->AllocateKv(blocks));
  }
  SequenceScheduler& scheduler() { return scheduler_; }

  static SequenceInput Input(int number, int prompt_tokens, int max_tokens, int priority) {
    SequenceInput input;
    input.prompt.assign(static_cast<size_t>(prompt_tokens), number);
    input.stop.max_tokens = max_tokens;
    input.priority = priority;
    return input;
  }
  SequenceId Add(SequenceInput input) {
    const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler_.Schedule(*id);
    return *id;
  }
  // Tokens are taken of all sequences, or of `only` one: the others then keep what they have.
  // False: there was nothing to compute.
  bool Step(std::optional<SequenceId> only = {}) {
    const auto slices = scheduler_.PlanStep();
    if (slices.empty()) return false;
    const StepResult& step = scheduler_.FinishStep(engine_->Step(slices, [](int) {}));
    EXPECT_OK(step.status);
    for (const StepOutcome& outcome : step.outcomes)
      if (outcome.sampled && outcome.id == only.value_or(outcome.id))
        scheduler_.AppendSampled(outcome);
    return true;
  }

 private:
  const std::unique_ptr<engine::Engine> engine_;
  SequenceScheduler scheduler_;
};

// A long answer of low priority, a request of high priority that grows, and one between them that
// has computed nothing: it gives way, and the long answer stays.
TEST(Preemption, WhatHasComputedNothingGivesWayToWhatHasComputedMuch) {
  Node node(18, 200, 8);
  const SequenceId urgent = node.Add(Node::Input(1, 16, 60, 0));
  const SequenceId patient = node.Add(Node::Input(2, 100, 60, 9));
  while (std::ssize(node.scheduler().Get(urgent).tokens) < 33) ASSERT_TRUE(node.Step());
  const SequenceId middle = node.Add(Node::Input(3, 100, 60, 5));
  ASSERT_EQ(node.scheduler().block_counts().available(), 0);
  ASSERT_TRUE(node.Step());
  EXPECT_EQ(node.scheduler().preemption_count(), 1);
  EXPECT_THAT(node.scheduler().Get(middle).blocks, IsEmpty());
  EXPECT_EQ(node.scheduler().Get(middle).preempted_early, 1);
  EXPECT_THAT(node.scheduler().Get(patient).blocks, Not(IsEmpty()));
}

// One that storage has is the cheapest each time that it comes back. The third time the last goes.
TEST(Preemption, WhatIsAlwaysTheCheapestGoesEarlyOnlySoOften) {
  Node node(18, 200, 8);
  FakeStorage storage;
  node.scheduler().set_stored_prices(&storage);
  const SequenceInput stored = Node::Input(3, 80, 2, 5);
  storage.only = node.scheduler().HashesOf(stored);
  storage.blocks = 100;
  // Only the first one's answer grows; the last one is the most expensive.
  const SequenceId urgent = node.Add(Node::Input(1, 1, 200, 0));
  const SequenceId other = node.Add(Node::Input(4, 16, 2, 0));
  const SequenceId middle = node.Add(stored);
  const SequenceId last = node.Add(Node::Input(2, 100, 2, 9));
  const auto has_blocks = [&](SequenceId id) { return !node.scheduler().Get(id).blocks.empty(); };
  const auto grow_until = [&](const std::function<bool()>& done) {
    while (!done() && !::testing::Test::HasFailure()) {
      ASSERT_TRUE(node.Step(urgent));
      ASSERT_LT(std::ssize(node.scheduler().Get(urgent).tokens), 200);
    }
  };
  for (int32_t early = 1; early <= kEarlyMax; ++early) {
    grow_until([&] { return has_blocks(middle); });
    grow_until([&] { return !has_blocks(middle); });
    EXPECT_EQ(node.scheduler().Get(middle).preempted_early, early);
    EXPECT_TRUE(has_blocks(last));
  }
  node.scheduler().Release(other);
  grow_until([&] { return has_blocks(middle); });
  grow_until([&] { return !has_blocks(last); });
  EXPECT_TRUE(has_blocks(middle));
  EXPECT_EQ(node.scheduler().Get(middle).preempted_early, kEarlyMax);
}

// A node's storage tells the scheduler what it has.
TEST(Preemption, WhatTheNodesStorageHasGoesEarly) {
  Node node(16, 200, 8);
  const SequenceInput stored = Node::Input(3, 80, 2, 5);
  NodeLedger ledger;
  const StoredBlocks storage(
      node.scheduler(), ledger,
      std::make_shared<const storage::StorageContents>(
          storage::StorageContents{.tiers = storage::TierSet::Of(storage::StoreTier::kDisk),
                                   .on_disk = node.scheduler().HashesOf(stored)}));
  const SequenceId urgent = node.Add(Node::Input(1, 1, 200, 0));
  const SequenceId middle = node.Add(stored);
  node.Add(Node::Input(2, 100, 2, 9));
  while (node.scheduler().preemption_count() == 0) ASSERT_TRUE(node.Step(urgent));
  EXPECT_EQ(node.scheduler().Get(middle).preempted_early, 1);
}

// ---- random requests

struct Workload {
  std::vector<SequenceInput> inputs;
  std::vector<int> begins;                    // the step before which each comes, ascending
  int64_t need = 0, largest = 0, growth = 0;  // blocks
};

Workload RandomWorkload(std::mt19937_64& random) {
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  Workload workload;
  int begins = 0;
  const int requests = between(8, 24);
  for (int i = 0; i < requests; ++i) {
    SequenceInput input = Node::Input(1 + i, between(1, 150), 0, between(0, 4));
    if (random() % 2 == 0) std::fill_n(input.prompt.begin(), input.prompt.size() * 2 / 3, 200);
    input.group = "1/request-" + std::to_string(i);
    const int answers = random() % 3 == 0 ? between(2, 4) : 1;
    begins += between(0, 12);
    for (int answer = 0; answer < answers; ++answer) {
      input.sequence_index = answer;
      input.sampling.seed = random();
      input.stop.max_tokens = between(1, 100);
      const auto prompt = std::ssize(input.prompt);
      const int64_t blocks = (prompt + input.stop.max_tokens) / kBlockTokens + 1;
      workload.inputs.push_back(input);
      workload.begins.push_back(begins);
      workload.need += blocks;
      workload.largest = std::max(workload.largest, blocks);
      workload.growth += input.stop.max_tokens / kBlockTokens + 1;
    }
  }
  return workload;
}

struct Served {
  std::map<size_t, std::vector<TokenId>> answers;
  int64_t preemptions = 0, early = 0, most = 0;  // all; of them early ones; of one sequence
};

class Serving {
 public:
  Serving(const Workload& workload, int64_t blocks)
      : workload_(workload), node_(blocks, /*batch_tokens=*/48, /*sequences=*/16) {}

  Served ToEnd() {
    for (int step = 0; served_.answers.size() < workload_.inputs.size(); ++step) {
      EXPECT_LT(step, 100'000) << served_.answers.size() << " have ended";
      if (::testing::Test::HasFailure()) break;
      AdmitSome(step);
      const SequenceId first = First();
      node_.Step();
      if (live_.contains(first)) {
        EXPECT_THAT(node_.scheduler().Get(first).blocks, Not(IsEmpty())) << "the first";
      }
      End();
    }
    served_.preemptions = node_.scheduler().preemption_count();
    EXPECT_EQ(node_.scheduler().block_counts().used, 0);
    return served_;
  }

 private:
  struct Live {
    size_t input = 0;
    bool had_blocks = true;
    int64_t preempted = 0;
  };
  void AdmitSome(int step) {
    for (; next_ < workload_.inputs.size() && workload_.begins[next_] <= step; ++next_) {
      const auto id = node_.scheduler().Admit(workload_.inputs[next_], /*generates=*/true);
      if (!id.ok()) return;
      node_.scheduler().Schedule(*id);
      live_[*id] = {.input = next_};
    }
  }
  // The first of those that run.
  SequenceId First() {
    const SequenceScheduler::Queue& running = node_.scheduler().running();
    return running.empty() ? SequenceId() : running.begin()->second->id;
  }
  void End() {
    for (auto it = live_.begin(); it != live_.end();) {
      const Sequence& sequence = node_.scheduler().Get(it->first);
      const bool has = !sequence.blocks.empty();
      if (it->second.had_blocks && !has) ++it->second.preempted;
      it->second.had_blocks = has;
      EXPECT_LE(sequence.preempted_early, kEarlyMax);
      served_.most = std::max(served_.most, it->second.preempted);
      if (std::ssize(sequence.tokens) < sequence.prompt_tokens + sequence.input.stop.max_tokens) {
        ++it;
        continue;
      }
      served_.early += sequence.preempted_early;
      served_.answers[it->second.input].assign(sequence.tokens.begin() + sequence.prompt_tokens,
                                               sequence.tokens.end());
      node_.scheduler().Release(it->first);
      it = live_.erase(it);
    }
  }

  const Workload& workload_;
  Node node_;
  size_t next_ = 0;
  std::map<SequenceId, Live> live_;
  Served served_;
};

TEST(Preemption, AQuarterOfThePoolGivesTheTokensOfAnUnlimitedOne) {
  constexpr int kSeeds = 40;
  const uint64_t first = std::random_device()();
  int64_t preemptions = 0, early = 0, most = 0;
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Workload workload = RandomWorkload(random);
    const Served alone = Serving(workload, workload.need).ToEnd();
    ASSERT_EQ(alone.preemptions, 0);
    const int64_t blocks = std::max(workload.need / 4, workload.largest);
    const Served served = Serving(workload, blocks).ToEnd();
    ASSERT_EQ(served.answers, alone.answers);
    const Served again = Serving(workload, blocks).ToEnd();
    EXPECT_EQ(again.preemptions, served.preemptions) << "equal histories, equal plans";
    EXPECT_EQ(again.early, served.early);
    // A sequence goes as the last one only if one before it has grown by a block, or has come in.
    EXPECT_LE(served.most, kEarlyMax + workload.growth + std::ssize(workload.inputs));
    preemptions += served.preemptions;
    early += served.early;
    most = std::max(most, served.most);
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << kSeeds << " seeds from " << first << ": " << preemptions << " preemptions, " << early
            << " of them early, " << most << " of one sequence at most\n";
  EXPECT_GT(preemptions, kSeeds);
  EXPECT_GT(early, 0);
}

}  // namespace
}  // namespace tandem::node
