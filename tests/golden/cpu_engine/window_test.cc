// Goal: layers with windows keep the KV of their windows alone, and no answer shows it. The
// scheduler drives the CPU engine over a pool with few window slots: prompts in chunks, hits in the
// prefix cache, forks and preemption. Each token and log-probability equals that of an engine with
// room for everything, over contexts of many windows. Before each step the memory of all slots
// that no block has is filled with NaN: no row reads it.
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "common/node/kv_sizing.h"
#include "common/node/sequence_scheduler.h"
#include "common/node/sequence_window.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

constexpr int64_t kBlocks = 40;
constexpr int64_t kMaxBatch = 48;

struct Asked {
  std::vector<TokenId> prompt;
  int32_t output_tokens = 0;
  std::vector<SampledToken> answer;
};

class WindowTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    seed_ = std::random_device()();
    random_.seed(seed_);
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/gemma3")));
    plain_ = NewEngine(/*slots=*/0, 512);
  }

  std::unique_ptr<Engine> NewEngine(int64_t slots, int64_t blocks) {
    CpuEngineOptions options;
    options.threads = 1;
    options.block_tokens = 16;
    options.kv_type = GetParam();
    auto engine = NewCpuEngine(*checkpoint_, options);
    EXPECT_OK(engine.status());
    (*engine)->SetWindowSlots(slots);
    EXPECT_OK((*engine)->AllocateKv(blocks));
    return *std::move(engine);
  }

  std::vector<TokenId> RandomTokens(int64_t count) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(3 + random_() % 140));
    return tokens;
  }

  // What the engine with room for everything answers.
  std::vector<SampledToken> Expected(const Asked& asked) {
    DrivenSequence sequence;
    sequence.tokens = asked.prompt;
    sequence.prompt_tokens = std::ssize(asked.prompt);
    sequence.sampling = Sampling();
    sequence.blocks = TakeBlocks(plain_->spec(), 0, 256);
    std::vector<SampledToken> answer;
    for (int32_t i = 0; i < asked.output_tokens; ++i) {
      auto token = ComputeRest(plain_.get(), &sequence, 1000);
      EXPECT_OK(token.status());
      answer.push_back(*token);
      sequence.tokens.push_back(token->token);
    }
    return answer;
  }

  static request::SamplingParams Sampling() {
    request::SamplingParams sampling;
    sampling.temperature = 0.8f;
    sampling.seed = 11;
    sampling.logprobs = 2;
    return sampling;
  }

  // Fills the windowed layers' memory of slots without a block.
  void Poison(const Engine& engine, const kv::BlockArena& arena) {
    const kv::BlockLayout& layout = engine.spec().layout;
    std::set<int32_t> used;
    for (int32_t block = 0; block < arena.num_blocks(); ++block)
      used.insert(arena.slots()->slot(BlockId(block)));
    for (const int32_t layer : layout.windowed_layers) {
      for (int32_t slot = 0; slot < arena.slots()->num_slots(); ++slot) {
        if (used.contains(slot)) continue;
        std::memset(arena.LayerRegion(layer) + slot * layout.layer_block_bytes, 0xff,
                    static_cast<size_t>(layout.layer_block_bytes));
        ++poisoned_;
      }
    }
  }

  // Runs all requests at once through a scheduler; fills in their answers.
  void RunAll(Engine& engine, std::vector<Asked>& asked, node::SequenceScheduler& scheduler) {
    std::map<node::SequenceId, Asked*> running;
    size_t next = 0;
    for (int steps = 0; next < asked.size() || !running.empty(); ++steps) {
      ASSERT_LT(steps, 100'000) << "seed " << seed_;
      while (next < asked.size()) {
        node::SequenceInput input;
        input.prompt = asked[next].prompt;
        input.sampling = Sampling();
        input.stop.max_tokens = asked[next].output_tokens;
        input.forks_follow = true;
        const auto id = scheduler.Admit(std::move(input), /*generates=*/true);
        if (absl::IsResourceExhausted(id.status())) break;
        ASSERT_OK(id.status());
        cached_ += scheduler.Get(*id).cached_tokens;
        scheduler.Schedule(*id);
        running.emplace(*id, &asked[next++]);
      }
      const auto slices = scheduler.PlanStep();
      for (const node::PlannedSlice& slice : scheduler.planned())
        forks_ += slice.forked_from.has_value() ? 1 : 0;
      Poison(engine, engine.arena());
      const auto result = engine.Step(slices, [](int) {});
      ASSERT_OK(result.status()) << "seed " << seed_;
      for (const node::StepOutcome& outcome : scheduler.FinishStep(result).outcomes) {
        if (!outcome.sampled) continue;
        Asked& request = *running.at(outcome.id);
        request.answer.push_back(outcome.token);
        if (std::ssize(request.answer) == request.output_tokens) {
          scheduler.Release(outcome.id);
          running.erase(outcome.id);
        } else {
          scheduler.AppendToken(outcome.id, outcome.token.token);
        }
      }
    }
  }

  // Forty requests in a scheduler and an engine of their own.
  void RunRound();

  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> plain_;
  int64_t poisoned_ = 0, cached_ = 0, forks_ = 0, preemptions_ = 0;
};

void WindowTest::RunRound() {
  const kv::BlockLayout layout = plain_->spec().layout;
  ASSERT_EQ(layout.window_tokens, 32);
  ASSERT_EQ(std::ssize(layout.windowed_layers), 6);
  // Room for the windows of a few sequences; preemption comes from the blocks and the slots.
  const int64_t slots = 6 * node::KeptSlots(layout);
  const std::unique_ptr<Engine> engine = NewEngine(slots, kBlocks);
  node::SchedulerOptions options;
  options.spec = engine->spec();
  options.num_blocks = kBlocks;
  options.slots = engine->arena().slots();
  options.max_batch_tokens = kMaxBatch;
  options.max_sequences = 12;
  node::SequenceScheduler scheduler(options);

  const std::vector<TokenId> shared = RandomTokens(120);
  std::vector<Asked> asked;
  for (int i = 0; i < 40; ++i) {
    Asked request;
    const int64_t beginning = random_() % 3 == 0 ? 0 : random_() % shared.size();
    request.prompt.assign(shared.begin(), shared.begin() + beginning);
    const auto own = RandomTokens(1 + random_() % 60);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    request.output_tokens = static_cast<int32_t>(1 + random_() % 70);
    // Every fourth asks what one before it asked, for a fork of its prompt's end.
    if (i % 4 == 3) request.prompt = asked[i - 1].prompt;
    asked.push_back(std::move(request));
  }
  RunAll(*engine, asked, scheduler);
  if (HasFatalFailure()) return;
  for (size_t i = 0; i < asked.size(); ++i) {
    const std::vector<SampledToken> expected = Expected(asked[i]);
    ASSERT_EQ(asked[i].answer.size(), expected.size());
    for (size_t t = 0; t < expected.size(); ++t) {
      ASSERT_EQ(asked[i].answer[t].token, expected[t].token)
          << "seed " << seed_ << " request " << i << " of " << asked[i].prompt.size()
          << " prompt tokens, token " << t;
      ASSERT_EQ(asked[i].answer[t].logprob, expected[t].logprob) << "seed " << seed_;
    }
  }
  std::cout << "seed " << seed_ << ": " << cached_ << " tokens cached, " << forks_ << " forks, "
            << scheduler.preemption_count() << " preemptions, " << poisoned_
            << " blocks of layers poisoned\n";
  preemptions_ += scheduler.preemption_count();
  const kv::WindowSlots::Counts left = scheduler.pool().slot_counts();
  EXPECT_EQ(left.reserved, 0);
  EXPECT_EQ(left.held, 0);
  EXPECT_EQ(left.free + left.cached, slots);
}

TEST_P(WindowTest, AnswersAreThoseOfAnEngineThatKeepsEverything) {
  for (int round = 0; round < 8; ++round) {
    RunRound();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(poisoned_, 0);
  EXPECT_GT(cached_, 0);
  EXPECT_GT(forks_, 0);
  EXPECT_GT(preemptions_, 0);
}

// A slice whose window reaches a block without a slot is refused, and nothing is computed.
TEST_P(WindowTest, ASliceWithoutItsWindowIsRefused) {
  const std::unique_ptr<Engine> engine = NewEngine(4, 8);
  DrivenSequence sequence;
  sequence.tokens = RandomTokens(40);
  sequence.prompt_tokens = 40;
  sequence.sampling = Sampling();
  sequence.blocks = TakeBlocks(engine->spec(), 0, 48);
  EXPECT_THAT(ComputeRest(engine.get(), &sequence, 48).status(),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::HasSubstr("block 0 has no window slot")));
  for (int32_t i = 0; i < 3; ++i) engine->arena().slots()->Set(BlockId(i), i);
  EXPECT_OK(ComputeRest(engine.get(), &sequence, 48).status());
}

INSTANTIATE_TEST_SUITE_P(Tiny, WindowTest, ::testing::Values("bf16", "int8"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace tandem::engine
