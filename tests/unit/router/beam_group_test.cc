// Goal: a step of a beam search costs what is new in it: its beams share their tokens, and the
// hashes of the blocks before those of the step are not made again.
#include "router/core/beam_group.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "router/core/placed_prompt.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

constexpr int kWidth = 4, kPrompt = 9;

v1::GeneratedToken Candidates(TokenId first, int count) {
  v1::GeneratedToken token;
  for (int i = 0; i < count; ++i) {
    token.add_top_logprobs()->set_token_id(first + i);
    token.mutable_top_logprobs(i)->set_logprob(static_cast<float>(-1 - i));
  }
  return token;
}

TEST(BeamSearchTest, BeamsShareTheTokensThatTheyHaveInCommon) {
  constexpr int kTokens = 1000;
  BeamSearch search({.width = kWidth}, kTokens, {}, 0);
  // Each time the best beam's likeliest token is far better than all others: beams differ in their
  // last token only.
  for (int step = 1; step < kTokens; ++step) {
    for (size_t b = 0; b < search.running().size(); ++b)
      search.Offer(static_cast<int32_t>(b), Candidates(10, kWidth));
    ASSERT_FALSE(search.Advance());
    EXPECT_EQ(search.running().front().num_tokens, step);
  }
  EXPECT_LT(search.tokens_kept(), kTokens + kWidth * kWidth);
  EXPECT_EQ(search.TokenIds(search.running().front()), std::vector<TokenId>(kTokens - 1, 10));
  for (size_t b = 0; b < search.running().size(); ++b)
    search.Offer(static_cast<int32_t>(b), Candidates(10, kWidth));
  EXPECT_TRUE(search.Advance());
  EXPECT_EQ(search.Tokens(search.complete().front()).back().index(), kTokens - 1);
  EXPECT_LT(search.tokens_kept(), kTokens + kWidth * kWidth);
}

class BeamHashesTest : public testing::Test {
 protected:
  BeamHashesTest() {
    fleet_.Join(NodeKey(1), TestRegistration("d0", v1::NODE_ROLE_DECODE), absl::UnixEpoch());
    RequestInput input;
    input.id = RequestId("r");
    input.prompt = Tokens(kPrompt);
    input.stop.Edit().max_tokens = 100;
    input.beams = BeamParams{.width = kWidth};
    input.sequences = kWidth;
    group_ = std::make_unique<BeamGroup>(std::move(input), absl::UnixEpoch());
  }
  // What the router does with the step's sequences before it places them.
  std::vector<kv::BlockHash> HashesOfInput(const RequestInput& input) {
    PlacedPrompt prompt(input.prompt, input.hashed);
    return prompt.Hashes(fleet_, TestModel(), "", hasher_);
  }
  void Advance(const std::vector<RequestInput>& inputs) {
    for (size_t beam = 0; beam < inputs.size(); ++beam) {
      SequenceAnswer::Outcome outcome;
      outcome.tokens = {Candidates(static_cast<TokenId>(100 + 10 * beam), kWidth)};
      group_->OnOutcome(static_cast<int32_t>(beam), outcome, "n1");
    }
    ASSERT_FALSE(group_->Advance(1000));
  }

  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {.nodes_max = 8}, random_};
  kv::BlockHasher hasher_{kv::BlockKey()};
  std::unique_ptr<BeamGroup> group_;
};

TEST_F(BeamHashesTest, AreThoseOfTheBeamsOwnTokens) {
  std::vector<std::shared_ptr<const std::vector<kv::BlockHash>>> before;
  int shared = 0;
  for (int step = 0; step < 4 * kBlockTokens; ++step) {
    const std::vector<RequestInput> inputs = group_->StepInputs(absl::UnixEpoch());
    ASSERT_EQ(inputs.size(), step == 0 ? 1u : size_t{kWidth});
    std::vector<std::shared_ptr<const std::vector<kv::BlockHash>>> known;
    for (const RequestInput& input : inputs) {
      EXPECT_EQ(HashesOfInput(input), HashesOf(*input.prompt)) << step;
      known.push_back(input.hashed->hashes);
    }
    // Unless the step fills a block, its beams have their parents' list itself.
    const bool fills = inputs[0].prompt->size() % kBlockTokens == 0;
    for (const auto& hashes : known)
      if (step > 0 && !fills) shared += std::count(before.begin(), before.end(), hashes) > 0;
    before = std::move(known);
    Advance(inputs);
  }
  // Of 15 steps with a parent, four fill a block.
  EXPECT_EQ(shared, 11 * kWidth);
}

// The prompt's KV moved once, and its first token came once, however many answers there are.
TEST_F(BeamHashesTest, OneOfTheAnswersHasTheTransferAndThePrediction) {
  std::vector<RequestInput> inputs = group_->StepInputs(absl::UnixEpoch());
  SequenceAnswer::Outcome outcome;
  outcome.tokens = {Candidates(100, kWidth)};
  outcome.done.emplace();
  outcome.done->route.set_decode_node("d0");
  outcome.done->route.set_kv_bytes_moved(4096);
  outcome.done->route.set_transport("shm");
  outcome.done->timing.set_first_token_predicted_ms(3);
  group_->OnOutcome(0, outcome, "n1");
  ASSERT_FALSE(group_->Advance(1000));
  for (bool over = false; !over;) {
    inputs = group_->StepInputs(absl::UnixEpoch());
    for (size_t beam = 0; beam < inputs.size(); ++beam) {
      SequenceAnswer::Outcome step;
      step.tokens = {Candidates(static_cast<TokenId>(100 + 10 * beam), kWidth)};
      group_->OnOutcome(static_cast<int32_t>(beam), step, "n1");
    }
    over = group_->Advance(1000);
  }
  int answers = 0;
  for (const ClientEvent& event : group_->Answers(absl::UnixEpoch())) {
    const auto* done = std::get_if<SequenceDone>(&event);
    if (done == nullptr) continue;
    const bool first = answers++ == 0;
    EXPECT_EQ(done->route.decode_node(), "d0");
    EXPECT_EQ(done->route.kv_bytes_moved(), first ? 4096 : 0);
    EXPECT_EQ(done->route.transport(), first ? "shm" : "");
    EXPECT_EQ(done->timing.first_token_predicted_ms(), first ? 3 : 0);
  }
  EXPECT_EQ(answers, kWidth);
}

// What is known of the first blocks is taken as it is: it is not even looked at.
TEST_F(BeamHashesTest, OnlyTheBlocksBehindThoseThatAreKnownAreHashed) {
  RequestInput input = group_->StepInputs(absl::UnixEpoch())[0];
  const kv::BlockHash known = {.high = 1, .low = 2};
  *input.hashed = {fleet_.generation(),
                   std::make_shared<const std::vector<kv::BlockHash>>(1, known)};
  const std::vector<TokenId>& tokens = *input.prompt;
  const kv::BlockHash next =
      hasher_.Next(known, absl::MakeConstSpan(tokens).subspan(kBlockTokens, kBlockTokens));
  EXPECT_EQ(HashesOfInput(input), (std::vector<kv::BlockHash>{known, next}));
  // Hashes of another fleet's blocks are of no use.
  input.hashed->generation = fleet_.generation() + 1;
  EXPECT_EQ(HashesOfInput(input), HashesOf(tokens));
}

// A prompt that goes on with delivered tokens is not the group's any more.
TEST_F(BeamHashesTest, ARetryKeepsItsHashesToItself) {
  const RequestInput input = group_->StepInputs(absl::UnixEpoch())[0];
  PlacedPrompt prompt(input.prompt, input.hashed);
  prompt.Hashes(fleet_, TestModel(), "", hasher_);
  const auto known = input.hashed->hashes;
  prompt.Extend(Tokens(2 * kBlockTokens));
  EXPECT_EQ(prompt.Hashes(fleet_, TestModel(), "", hasher_).size(),
            (kPrompt + 2 * kBlockTokens) / kBlockTokens);
  EXPECT_EQ(input.hashed->hashes, known);
}

}  // namespace
}  // namespace tandem::router
