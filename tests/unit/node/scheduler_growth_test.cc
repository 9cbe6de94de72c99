// Goal: what a scheduler keeps so that a step need not look for it is right: the rows of prompts
// that wait, whatever happens to their sequences, and that there are too few blocks for a preempted
// one; and lists of tokens whose memory grows before it is needed do so one at a time.
#include <iostream>
#include <map>
#include <random>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

SchedulerOptions Options(int64_t blocks, int32_t context_tokens) {
  return {.spec = (*engine::NewHashEngine({.context_tokens = context_tokens}))->spec(),
          .num_blocks = blocks,
          .max_batch_tokens = 40,
          .max_sequences = 8};
}

// By the definition, of the preempted sequence that is next.
bool CouldResume(SequenceScheduler& scheduler) {
  const std::vector<SequenceId> next = scheduler.NextToResume(1);
  if (next.empty()) return false;
  const std::vector<kv::BlockHash> hashes = scheduler.HashesToResume(next[0]);
  const auto found =
      absl::MakeConstSpan(hashes).first(static_cast<size_t>(scheduler.pool().MatchLength(hashes)));
  const int64_t needed =
      scheduler.spec().layout.BlocksFor(std::ssize(scheduler.Get(next[0]).tokens));
  return needed - std::ssize(found) <= scheduler.pool().AvailableBeside(found);
}

// Plans a step, calls `meanwhile`, and finishes the step.
template <typename Meanwhile>
void Step(SequenceScheduler& scheduler, Meanwhile meanwhile) {
  size_t sampling = 0;
  const int64_t preempted = scheduler.preemption_count();
  for (const engine::SequenceSlice& slice : scheduler.PlanStep()) sampling += slice.sample ? 1 : 0;
  const bool slots_left = scheduler.running_count() < scheduler.options().max_sequences;
  if (slots_left && scheduler.preemption_count() == preempted) {
    ASSERT_FALSE(CouldResume(scheduler));
  }
  meanwhile();
  const StepResult& step =
      scheduler.FinishStep(std::vector<engine::SampledToken>(sampling, {.token = 65}));
  ASSERT_OK(step.status);
  for (const StepOutcome& outcome : step.outcomes)
    if (outcome.sampled) scheduler.AppendSampled(outcome);
}

class PrefillTokensWaiting {
 public:
  explicit PrefillTokensWaiting(uint64_t seed) : random_(seed) {}

  void Run() {
    for (int i = 0; i < 20'000; ++i) {
      Change();
      ASSERT_EQ(scheduler_.prefill_tokens_waiting(), Expected()) << "after change " << i;
    }
    ASSERT_GT(scheduler_.preemption_count(), 10);
  }

 private:
  int Below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }
  bool OneIn(int count) { return Below(count) == 0; }

  void Change() {
    if (OneIn(3)) return Admit();
    if (OneIn(8)) return Leave();
    ReleaseWhole();
    ASSERT_NO_FATAL_FAILURE(Step(scheduler_, [this] {
      if (OneIn(4)) Leave();
      ASSERT_EQ(scheduler_.prefill_tokens_waiting(), Expected()) << "during a step";
    }));
  }
  void Admit() {
    SequenceInput input;
    // Some prompts begin as others do.
    input.prompt.assign(static_cast<size_t>(1 + Below(90)), OneIn(2) ? 7 : 1 + Below(200));
    input.stop.max_tokens = 1 + Below(60);
    const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
    if (!id.ok()) return;
    scheduler_.Schedule(*id);
    ids_.push_back(*id);
  }
  // Those that have all tokens that they may have.
  void ReleaseWhole() {
    std::erase_if(ids_, [this](SequenceId id) {
      const Sequence& sequence = scheduler_.Get(id);
      const bool whole = std::ssize(sequence.tokens) >= sequence.tokens_max;
      if (whole) scheduler_.Release(id);
      return whole;
    });
  }
  void Leave() {
    if (ids_.empty()) return;
    const size_t at = static_cast<size_t>(Below(static_cast<int>(ids_.size())));
    if (OneIn(3) && scheduler_.Get(ids_[at]).phase != SequencePhase::kParked)
      return scheduler_.Park(ids_[at]);
    scheduler_.Release(ids_[at]);
    ids_.erase(ids_.begin() + static_cast<ptrdiff_t>(at));
  }
  // By the definition.
  int64_t Expected() const {
    int64_t tokens = 0;
    for (const SequenceId id : ids_) {
      const Sequence& sequence = scheduler_.Get(id);
      const bool queued =
          sequence.phase == SequencePhase::kWaiting || sequence.phase == SequencePhase::kRunning;
      if (queued && sequence.remaining() > 1) tokens += sequence.remaining();
    }
    return tokens;
  }

  std::mt19937_64 random_;
  SequenceScheduler scheduler_{Options(24, 256)};
  std::vector<SequenceId> ids_;
};

TEST(SchedulerGrowth, PrefillTokensWaitingAreThoseOfTheSequencesInTheQueues) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  PrefillTokensWaiting(seed).Run();
}

TEST(SchedulerGrowth, TokenListsGetMemoryOneAStep) {
  constexpr int kSequences = 8, kPromptTokens = 20, kAnswerTokens = 3000;
  SequenceScheduler scheduler(Options(2000, 8192));
  std::map<SequenceId, size_t> capacities;
  for (int i = 0; i < kSequences; ++i) {
    SequenceInput input;
    input.prompt.reserve(kPromptTokens + 600);  // as ParseSequence, with room for an answer
    input.prompt.assign(kPromptTokens, 1 + i);
    input.stop.max_tokens = kAnswerTokens;
    ASSERT_OK_AND_ASSIGN(const SequenceId id, scheduler.Admit(std::move(input), true));
    scheduler.Schedule(id);
    capacities[id] = scheduler.Get(id).tokens.capacity();
  }
  int grown = 0;
  for (int i = 0; i < kAnswerTokens; ++i) {
    ASSERT_NO_FATAL_FAILURE(Step(scheduler, [] {}));
    int now = 0;
    for (auto& [id, capacity] : capacities) {
      const size_t before = std::exchange(capacity, scheduler.Get(id).tokens.capacity());
      now += capacity != before ? 1 : 0;
      ASSERT_LE(capacity, static_cast<size_t>(kPromptTokens + kAnswerTokens));
    }
    ASSERT_LE(now, 1) << "lists that grew in step " << i;
    grown += now;
  }
  EXPECT_GE(grown, 2 * kSequences);
}

}  // namespace
}  // namespace tandem::node
