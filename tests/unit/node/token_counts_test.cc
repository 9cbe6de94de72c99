// Goal: a sequence with penalties hands its engine counts that equal a recount of its history at
// each token, through preemption and resumption, and a token is counted once for each time that the
// sequence begins to run.
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

class TokenCountsTest : public ::testing::Test {
 protected:
  TokenCountsTest() {
    const char* repeat = std::getenv("TANDEM_TEST_SEED");
    const uint64_t seed =
        repeat != nullptr ? std::strtoull(repeat, nullptr, 10) : std::random_device()();
    std::cout << "seed " << seed << " (repeat with TANDEM_TEST_SEED)\n";
    random_.seed(seed);
  }
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  void Add() {
    SequenceInput input;
    const int prompt = 2 + Below(60);
    for (int i = 0; i < prompt; ++i) input.prompt.push_back(Below(256));
    input.delivered_tokens = Below(prompt - 1);
    input.stop.max_tokens = 100;
    if (Below(4) > 0) input.sampling.frequency_penalty = 0.25;
    const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
    if (id.ok()) scheduler_.Schedule(*id);
  }
  // Plans a step and checks the counts of its slices; false when nothing can be computed.
  bool Plan() {
    const auto slices = scheduler_.PlanStep();
    for (auto& [id, counted] : counted_) {
      const Sequence* sequence = scheduler_.Find(id);
      if (sequence != nullptr && sequence->blocks.empty()) counted = 0;
    }
    for (size_t i = 0; i < slices.size(); ++i) {
      const engine::SequenceSlice& slice = slices[i];
      if (!slice.sample || !slice.sampling->has_penalties()) {
        EXPECT_EQ(slice.counts, nullptr);
        continue;
      }
      int64_t& counted = counted_[scheduler_.planned()[i].id];
      expected_ += std::ssize(slice.tokens) - std::exchange(counted, std::ssize(slice.tokens));
      engine::TokenCounts again;
      again.Extend(slice.tokens, slice.prompt_tokens, scheduler_.spec().vocab_size);
      if (slice.counts == nullptr) return ADD_FAILURE() << "no counts", false;
      ExpectEqual(slice.counts->counts(), again.counts());
    }
    return !slices.empty();
  }
  static void ExpectEqual(absl::Span<const kernels::TokenCount> a,
                          absl::Span<const kernels::TokenCount> b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].token, b[i].token);
      ASSERT_EQ(a[i].prompt_count, b[i].prompt_count);
      ASSERT_EQ(a[i].output_count, b[i].output_count);
    }
  }
  void Finish() {
    std::vector<engine::SampledToken> sampled;
    for (const PlannedSlice& slice : scheduler_.planned())
      if (slice.sample) sampled.push_back({.token = Below(256)});
    std::vector<SequenceId> ended;
    for (const StepOutcome& outcome : scheduler_.FinishStep(sampled).outcomes) {
      if (!outcome.sampled) continue;
      scheduler_.AppendSampled(outcome);
      if (std::ssize(outcome.sequence->tokens) >= outcome.sequence->tokens_max)
        ended.push_back(outcome.id);
    }
    for (const SequenceId id : ended) scheduler_.Release(id);
  }

  std::mt19937_64 random_;
  SequenceScheduler scheduler_{{.spec = (*engine::NewHashEngine({.context_tokens = 512}))->spec(),
                                .num_blocks = 24,
                                .max_batch_tokens = 40,
                                .max_sequences = 6}};
  std::map<SequenceId, int64_t> counted_;  // tokens, since the sequence began to run
  int64_t expected_ = 0;
};

TEST_F(TokenCountsTest, EqualARecountThroughPreemptionAndResumption) {
  for (int step = 0; step < 4000 && !HasFailure(); ++step) {
    if (Below(8) == 0) Add();
    if (!Plan()) continue;
    Finish();
  }
  EXPECT_GT(scheduler_.preemption_count(), 0);
  EXPECT_EQ(scheduler_.tokens_counted(), expected_);
}

// The bound: a long history is read once, not once a token.
TEST_F(TokenCountsTest, ATokenIsCountedOnce) {
  SequenceInput input;
  for (int i = 0; i < 300; ++i) input.prompt.push_back(i % 200);
  input.stop.max_tokens = 60;
  input.sampling.presence_penalty = 1;
  const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
  ASSERT_OK(id.status());
  scheduler_.Schedule(*id);
  while (scheduler_.size() > 0 && Plan()) Finish();
  EXPECT_EQ(scheduler_.tokens_counted(), 300 + 59);
}

}  // namespace
}  // namespace tandem::node
