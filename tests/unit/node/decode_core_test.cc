// Goal: the decode core answers each command and event of its contract as documented: what is
// refused and why, who computes, what the KV plane is told, how epochs, attempts, deadlines and
// aborts end, and where blocks are meanwhile.
#include <cmath>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(DecodeCoreTest, RefusesWhatCannotBeTakenOnAndHoldsNothing) {
  const auto refused = [&](v1::NodeCommand command, absl::StatusCode code, const char* what) {
    EXPECT_THAT(Refusal(Send(command)), testing::StatusIs(code, HasSubstr(what)));
    EXPECT_TRUE(core_->idle());
    EXPECT_EQ(used(), 0);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  refused(Run("a", 0), kInvalid, "prompt: is empty");
  refused(Run("a", 200), kInvalid, "context of 200");
  refused(Run("a", 127), kInvalid, "needs 9 KV blocks, this node has 8");
  v1::NodeCommand command = Run("a", 4);
  command.mutable_start_decode()->mutable_sequence()->set_prompt(2, 259);
  refused(command, kInvalid, "prompt[2]: token 259");
  command = Run("a", 4);
  command.mutable_start_decode()->mutable_sequence()->mutable_sampling()->set_top_p(2);
  refused(command, kInvalid, "top_p");
  command = Run("a", 4);
  command.mutable_start_decode()->mutable_sequence()->mutable_stop()->clear_max_tokens();
  refused(command, kInvalid, "max_tokens");
  command = Run("a", 4);
  command.mutable_start_decode()->mutable_sequence()->set_delivered_tokens(3);
  refused(command, kInvalid, "delivered_tokens: 3, expected less than max_tokens");
  command = Run("a", 4);
  command.mutable_start_decode()->set_deadline_s(std::nan(""));
  refused(command, kInvalid, "deadline_s");
  refused(Run("a", 4, -2), kInvalid, "local_prefill_tokens_max: -2");
  command.mutable_prefill()->mutable_leg()->set_request_id("a");
  refused(command, absl::StatusCode::kUnavailable, "does not retain the sequence");
}

TEST_F(DecodeCoreTest, RefusesForNowWithoutBlocksOrSlotsAndWhileDraining) {
  constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
  Send(Run("a", 80));  // 5 blocks and one to grow into
  EXPECT_THAT(Refusal(Send(Run("b", 33))),
              testing::StatusIs(kExhausted, HasSubstr("3 blocks are needed, 2 of 8")));
  Send(Abort("a"));
  Send(transfer::LeaseDrained{LeaseId(1)});
  for (const char* id : {"c", "d", "e", "f"}) Send(Run(id, 2));
  EXPECT_THAT(Refusal(Send(Run("g", 2))),
              testing::StatusIs(kExhausted, HasSubstr("slots: this node holds 4")));
  core_->BeginDrain(now_, absl::Seconds(1));
  core_->BeginDrain(now_, absl::Seconds(1));
  const node::NodeActions actions = resources_->TakeActions();
  ASSERT_THAT(actions.broadcast, SizeIs(1));
  EXPECT_TRUE(actions.broadcast[0].has_draining());
  EXPECT_THAT(Refusal(Send(Run("h", 2))), testing::StatusIs(absl::StatusCode::kUnavailable,
                                                            HasSubstr("this node is draining")));
}

TEST_F(DecodeCoreTest, ShortPromptsAreComputedHereAndCachedPrefixesCount) {
  node::NodeActions actions = Send(Run("a", 40, /*local_max=*/40));
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_TRUE(actions.events[0].second.reserved().computes_locally());
  EXPECT_THAT(actions.transfer, IsEmpty());

  actions = Step();  // Installed, then the token; two blocks became findable
  ASSERT_THAT(actions.events, SizeIs(2));
  const v1::Installed& installed = actions.events[0].second.installed();
  EXPECT_EQ(installed.tokens().computed(), 40);
  EXPECT_FALSE(installed.has_first_token());
  EXPECT_EQ(actions.events[1].second.tokens().steps(0).tokens(0).index(), 0);
  ASSERT_THAT(actions.broadcast, SizeIs(1));
  EXPECT_EQ(actions.broadcast[0].blocks_stored().hashes().size(), 32u) << "two of 16 bytes";
  Step();
  actions = Step();  // the third token is the last
  ASSERT_THAT(actions.events, SizeIs(2));
  EXPECT_EQ(actions.events[1].second.leg_finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(actions.events[1].second.leg_finished().output_tokens(), 3);
  EXPECT_TRUE(core_->idle());

  // 40 tokens that begin as before: 32 are cached, 8 are not.
  v1::NodeCommand other = Run("b", 40, /*local_max=*/7);
  other.mutable_start_decode()->mutable_sequence()->set_prompt(32, 99);
  actions = Send(other);
  EXPECT_EQ(actions.events[0].second.reserved().cached_tokens(), 32);
  EXPECT_FALSE(actions.events[0].second.reserved().computes_locally());
  ASSERT_THAT(actions.transfer, SizeIs(1));
  const auto& open = std::get<transfer::OpenLease>(actions.transfer[0]);
  EXPECT_EQ(open.first_ordinal, 2);
  EXPECT_THAT(open.blocks, SizeIs(1));
  EXPECT_EQ(open.deadline, now_ + absl::Seconds(5));
  // A prompt that is cached whole still has its last token computed.
  actions = Send(Run("c", 32, /*local_max=*/16));
  EXPECT_EQ(actions.events[0].second.reserved().cached_tokens(), 16);
  EXPECT_TRUE(actions.events[0].second.reserved().computes_locally());
}

TEST_F(DecodeCoreTest, APromptOfOneTokenThatIsNotToBeComputedHereIsReceived) {
  const node::NodeActions actions = Send(Run("r", 1, /*local_max=*/0));
  ASSERT_EQ(actions.events.size(), 1u);
  EXPECT_FALSE(actions.events[0].second.reserved().computes_locally());
}

TEST_F(DecodeCoreTest, WhatFollowsAMarkedLegIsForkedAndNeedsNoSender) {
  v1::NodeCommand marked = Run("a", 40, /*local_max=*/40);
  marked.mutable_start_decode()->set_forks_follow(true);
  marked.mutable_start_decode()->mutable_sequence()->mutable_stop()->set_max_tokens(1);
  Send(marked);
  Step();
  ASSERT_TRUE(core_->idle());
  EXPECT_EQ(core_->load().blocks_cached(), 3) << "two full blocks, and 8 rows of a third";

  // The same prompt and one more token. The whole of it may be computed here only as a fork.
  node::NodeActions actions = Send(Run("b", 41));
  EXPECT_TRUE(actions.events[0].second.reserved().computes_locally());
  EXPECT_EQ(actions.events[0].second.reserved().cached_tokens(), 32);
  actions = Step();
  EXPECT_EQ(actions.events[0].second.installed().tokens().computed(), 1);
  EXPECT_EQ(actions.events[0].second.installed().tokens().cached(), 40);
  std::vector<TokenId> prompt(41);
  std::iota(prompt.begin(), prompt.end(), 0);
  request::SamplingParams greedy;
  greedy.seed = 1;
  engine::HashEngineOptions options;
  options.block_tokens = kBlockTokens;
  EXPECT_EQ(actions.events[1].second.tokens().steps(0).tokens(0).token_id(),
            engine::HashEngineNextToken(options, prompt, greedy, 0));
  // Another token at the part's end: a prefill node sends the block.
  v1::NodeCommand other = Run("c", 41);
  other.mutable_start_decode()->mutable_sequence()->set_prompt(39, 7);
  EXPECT_FALSE(Send(other).events[0].second.reserved().computes_locally());
}

TEST_F(DecodeCoreTest, InstalledSequencesGenerateAfterTheFirstToken) {
  Send(Run("a", 20));
  node::NodeActions actions = Send(Installed(1, 65));
  ASSERT_THAT(actions.events, SizeIs(1));
  const v1::Installed& installed = actions.events[0].second.installed();
  EXPECT_EQ(installed.tokens().received(), 20);
  EXPECT_EQ(installed.first_token().token_id(), 65);
  EXPECT_EQ(installed.kv_bytes_received(), 1000);
  EXPECT_EQ(installed.kv_transfer_ms(), 40);
  EXPECT_EQ(installed.kv_receive_ms(), 3);
  EXPECT_EQ(installed.kv_hidden_ms(), 2);
  EXPECT_EQ(installed.kv_beyond_ms(), 0.5);
  EXPECT_EQ(installed.transport(), "fake");
  EXPECT_EQ(core_->load().leases(), 0);
  const auto slices = core_->PlanStep(now_);
  ASSERT_THAT(slices, SizeIs(1));
  EXPECT_EQ(slices[0].num_computed, 20);
  EXPECT_EQ(slices[0].num_new, 1);
  EXPECT_EQ(slices[0].tokens.back(), 65);
  core_->OnStepDone(std::vector<engine::SampledToken>{{.token = 66}}, now_);
  actions = resources_->TakeActions();
  EXPECT_EQ(actions.events[0].second.tokens().steps(0).tokens(0).index(), 1);
}

TEST_F(DecodeCoreTest, AFirstTokenMayBeTheLast) {
  v1::NodeCommand command = Run("a", 20);
  command.mutable_start_decode()->mutable_sequence()->add_eos_token_ids(65);
  Send(command);
  const node::NodeActions actions = Send(Installed(1, 65));
  ASSERT_THAT(actions.events, SizeIs(2));
  EXPECT_EQ(actions.events[1].second.leg_finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_TRUE(core_->idle());
}

TEST_F(DecodeCoreTest, AFirstTokenThatCannotBeIsDataLoss) {
  for (const auto& event : {Installed(1, 259), Installed(2, 65, /*index=*/1)}) {
    Send(Run("a", 20));
    const node::NodeActions actions = Send(event);
    ASSERT_THAT(actions.events, SizeIs(1));
    const v1::LegFailed& failed = actions.events[0].second.leg_failed();
    EXPECT_EQ(failed.status().code(), static_cast<int>(absl::StatusCode::kDataLoss));
    EXPECT_FALSE(failed.sender_side());
    Send(transfer::LeaseDrained{event.lease});
    EXPECT_TRUE(core_->idle());
  }
}

TEST_F(DecodeCoreTest, AbortedLeasesStayQuarantinedUntilDrained) {
  Send(Run("a", 47));  // 3 blocks and one to grow into
  EXPECT_EQ(used(), 4);
  node::NodeActions actions = Send(Abort("a"));
  ASSERT_THAT(actions.transfer, SizeIs(1));
  EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer[0]).lease, LeaseId(1));
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(core_->load().blocks_quarantined(), 3);
  EXPECT_FALSE(core_->idle());
  // Whatever comes now changes nothing.
  EXPECT_TRUE(Send(Abort("a")).empty());
  EXPECT_TRUE(Send(Installed(1, 65)).empty());
  EXPECT_EQ(core_->load().blocks_quarantined(), 3);
  EXPECT_TRUE(Send(transfer::LeaseDrained{LeaseId(1)}).empty());
  EXPECT_TRUE(Send(transfer::LeaseDrained{LeaseId(1)}).empty());
  EXPECT_EQ(core_->load().blocks_free(), kBlocks);
  EXPECT_TRUE(core_->idle());
}

TEST_F(DecodeCoreTest, HandingOverGivesUpEveryLegThatIsNotWholeAndKeepsQuarantines) {
  Send(Run("a", 20, /*local_max=*/20));  // not computed yet
  Send(Run("b", 21));
  core_->BeginDrain(now_, absl::Seconds(1));
  resources_->TakeActions();
  core_->StartMigration(now_, absl::Seconds(1));
  node::NodeActions actions = resources_->TakeActions();
  ASSERT_THAT(actions.events, SizeIs(2));
  for (const auto& [router, event] : actions.events) {
    EXPECT_EQ(event.leg_failed().status().code(), static_cast<int>(absl::StatusCode::kUnavailable));
    EXPECT_FALSE(event.leg_failed().sender_side());
  }
  ASSERT_THAT(actions.transfer, SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<transfer::CloseLease>(actions.transfer[0]));
  EXPECT_EQ(used(), 0);
  EXPECT_FALSE(core_->idle()) << "a receive may still come";
  Send(transfer::LeaseDrained{LeaseId(1)});
  EXPECT_TRUE(core_->idle());
}

TEST_F(DecodeCoreTest, FailedSendersAreReplacedUnderANewEpoch) {
  Send(Run("a", 20));
  const transfer::LeaseFailed failed{LeaseId(1), Epoch(1), absl::UnavailableError("gone")};
  node::NodeActions actions = Send(failed);
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_TRUE(actions.events[0].second.leg_failed().sender_side());
  EXPECT_EQ(actions.events[0].second.leg_failed().epoch(), 1u);

  now_ += absl::Seconds(4);
  actions = Send(NewEpoch("a", 1, 2));
  ASSERT_THAT(actions.transfer, SizeIs(1));
  const auto& raise = std::get<transfer::RaiseEpoch>(actions.transfer[0]);
  EXPECT_EQ(raise.epoch, Epoch(2));
  EXPECT_EQ(raise.deadline, now_ + absl::Seconds(5));
  EXPECT_TRUE(Send(failed).empty()) << "epoch 1's failure is stale news";
  actions = Send(NewEpoch("a", 1, 2));  // not newer
  EXPECT_EQ(actions.events.at(0).second.leg_failed().status().code(),
            static_cast<int>(absl::StatusCode::kFailedPrecondition));
  actions = Send(NewEpoch("b", 9, 2));
  EXPECT_EQ(actions.events.at(0).second.leg_failed().status().code(),
            static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_THAT(Send(Installed(1, 65)).events, SizeIs(1));
}

// Three blocks of 16 tokens and a partial one, of which a lost sender brought some.
TEST_F(DecodeCoreTest, ANextSenderIsToldWhatIsVerified) {
  struct Case {
    int verified_blocks, received_tokens;
  };
  uint64_t lease = 0;
  for (const Case& c : {Case{0, 0}, Case{2, 32}, Case{4, 48}}) {
    ++lease;
    const std::string id = absl::StrCat("r", lease);
    Send(Run(id, 50));
    node::NodeActions actions = Send(NewEpoch(id, lease, 2));
    EXPECT_THAT(actions.events, IsEmpty()) << "the KV plane's word is waited for";
    EXPECT_THAT(Send(transfer::EpochRaised{LeaseId(lease), Epoch(1), 1}).events, IsEmpty());
    actions = Send(transfer::EpochRaised{LeaseId(lease), Epoch(2), c.verified_blocks});
    ASSERT_THAT(actions.events, SizeIs(1));
    const v1::Reserved& reserved = actions.events[0].second.reserved();
    EXPECT_EQ(reserved.lease_id(), lease);
    EXPECT_EQ(reserved.epoch(), 2u);
    EXPECT_EQ(reserved.cached_tokens(), 0);
    EXPECT_EQ(reserved.received_tokens(), c.received_tokens) << "the last token is always left";
    EXPECT_FALSE(reserved.computes_locally());
    EXPECT_THAT(actions.transfer, IsEmpty());
    Send(Abort(id));
    Send(transfer::LeaseDrained{LeaseId(lease)});
  }
}

TEST_F(DecodeCoreTest, WhatALostSenderLeftIsComputedBehindWhatItBrought) {
  Send(Run("a", 50));
  Send(NewEpoch("a", 1, 2, /*local_max=*/20));
  node::NodeActions actions = Send(transfer::EpochRaised{LeaseId(1), Epoch(2), 2});
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_TRUE(actions.events[0].second.reserved().computes_locally());
  ASSERT_THAT(actions.transfer, SizeIs(1));
  EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer[0]).lease, LeaseId(1));
  EXPECT_THAT(core_->PlanStep(now_), IsEmpty()) << "bytes may still land in the other blocks";
  EXPECT_TRUE(
      Send(transfer::LeaseFailed{LeaseId(1), Epoch(2), absl::UnavailableError("late")}).empty());
  EXPECT_TRUE(Send(Installed(1, 65)).empty());
  Send(transfer::LeaseDrained{LeaseId(1)});
  const auto slices = core_->PlanStep(now_);
  ASSERT_THAT(slices, SizeIs(1));
  EXPECT_EQ(slices[0].num_computed, 32);
  EXPECT_EQ(slices[0].num_new, 18);
  core_->OnStepDone(std::vector<engine::SampledToken>(1), now_);
  actions = resources_->TakeActions();
  ASSERT_FALSE(actions.events.empty());
  const v1::TokensBySource& tokens = actions.events[0].second.installed().tokens();
  EXPECT_EQ(tokens.cached(), 0);
  EXPECT_EQ(tokens.received(), 32);
  EXPECT_EQ(tokens.computed(), 18);
}

// The leg may end while its lease is being closed: one CloseLease, one LeaseDrained.
TEST_F(DecodeCoreTest, ALegThatEndsWhileItsLeaseIsClosedKeepsItsBlocksUntilThen) {
  Send(Run("a", 50));
  Send(NewEpoch("a", 1, 2, /*local_max=*/-1));
  Send(transfer::EpochRaised{LeaseId(1), Epoch(2), 1});
  const node::NodeActions actions = Send(Abort("a"));
  EXPECT_THAT(actions.transfer, IsEmpty());
  EXPECT_EQ(core_->load().blocks_quarantined(), 4);
  EXPECT_FALSE(core_->idle());
  Send(transfer::LeaseDrained{LeaseId(1)});
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
  EXPECT_TRUE(core_->idle());
}

TEST_F(DecodeCoreTest, LeasesExpireWithoutTraffic) {
  Send(Run("a", 20));
  now_ += absl::Seconds(5) - absl::Milliseconds(1);
  core_->OnTick(now_);
  EXPECT_TRUE(resources_->TakeActions().empty());
  now_ += absl::Milliseconds(1);
  core_->OnTick(now_);
  const node::NodeActions actions = resources_->TakeActions();
  ASSERT_THAT(actions.events, SizeIs(1));
  const v1::LegFailed& failed = actions.events[0].second.leg_failed();
  EXPECT_EQ(failed.status().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(failed.sender_side());
  EXPECT_TRUE(std::holds_alternative<transfer::CloseLease>(actions.transfer.at(0)));
  EXPECT_EQ(resources_->counters().leases_expired(), 1);
}

TEST_F(DecodeCoreTest, OlderAttemptsAreIgnoredNewerOnesReplace) {
  Send(Run("a", 20, 0, /*attempt=*/3));
  EXPECT_TRUE(Send(Run("a", 20, 0, 2)).empty());
  EXPECT_TRUE(Send(Run("a", 20, 0, 3)).empty());
  EXPECT_TRUE(Send(Abort("a", 2)).empty());
  const node::NodeActions actions = Send(Run("a", 20, 0, 4));
  ASSERT_THAT(actions.transfer, SizeIs(2));
  EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer[0]).lease, LeaseId(1));
  EXPECT_EQ(std::get<transfer::OpenLease>(actions.transfer[1]).lease, LeaseId(2));
  EXPECT_EQ(actions.events.at(0).second.reserved().leg().attempt(), 4u);
}

TEST_F(DecodeCoreTest, OneStepIsOneTokenEventPerRouter) {
  Send(Run("a", 4, -1));
  Send(Run("b", 5, -1));
  const node::NodeActions actions = Step();
  ASSERT_THAT(actions.events, SizeIs(3));  // two Installed, one for both tokens
  EXPECT_EQ(actions.events[2].second.tokens().steps_size(), 2);
}

TEST_F(DecodeCoreTest, TokensOfNumberedLegsAreLists) {
  v1::NodeCommand numbered = Run("a", 4, -1);
  numbered.mutable_start_decode()->mutable_leg()->set_number(9);
  numbered.mutable_start_decode()->mutable_leg()->set_sequence_index(2);
  Send(numbered);
  Send(Run("b", 5, -1));
  const node::NodeActions actions = Step();
  ASSERT_THAT(actions.events, SizeIs(3));
  EXPECT_EQ(actions.events[0].second.installed().leg().request_id(), "a");
  EXPECT_EQ(actions.events[0].second.installed().leg().number(), 9u);
  const v1::TokensGenerated& tokens = actions.events[2].second.tokens();
  ASSERT_EQ(tokens.plain().leg_numbers_size(), 1);
  EXPECT_EQ(tokens.plain().leg_numbers(0), 9u);
  EXPECT_EQ(tokens.plain().leg_attempts(0), 1u);
  EXPECT_EQ(tokens.plain().indices(0), 0);
  EXPECT_EQ(tokens.plain().token_ids_size(), 1);
  EXPECT_EQ(tokens.plain().logprobs_size(), 1);
  ASSERT_EQ(tokens.steps_size(), 1);  // of the router that numbers no legs
  EXPECT_EQ(tokens.steps(0).leg().request_id(), "b");

  // Top log-probabilities have no place in lists.
  v1::TokensGenerated scored;
  v1::GeneratedToken token;
  token.add_top_logprobs()->set_token_id(5);
  node::AddToken(numbered.start_decode().leg(), token, scored);
  EXPECT_FALSE(scored.has_plain());
  EXPECT_EQ(scored.steps(0).tokens(0).top_logprobs_size(), 1);
}

// When the constraint's mask leaves no token, the request is at fault, wherever this is noticed.
TEST_F(DecodeCoreTest, AConstraintThatLeavesNoTokenIsTheRequestsFault) {
  v1::NodeCommand command = Run("a", 4, -1);
  v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
  sequence.mutable_guided()->set_regex("7x");
  sequence.mutable_sampling()->add_allowed_token_ids('7');
  // Nothing is compiled on the engine's thread.
  EXPECT_THAT(Refusal(Send(command)),
              testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again")));
  CompileFor(sequence);
  Send(command);
  const node::NodeActions actions = Step();
  v1::LegFailed failed;
  for (const auto& [router, event] : actions.events) {
    if (event.has_leg_failed()) failed = event.leg_failed();
  }
  EXPECT_TRUE(failed.request_at_fault());
  EXPECT_EQ(failed.status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(core_->idle());
  sequence.mutable_guided()->set_regex("x7");
  CompileFor(sequence);
  EXPECT_THAT(Refusal(Send(command)), testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                                        HasSubstr("allowed_token_ids")));
}

// The end, or the fault, of an answer whose beginning came from another node is found when the
// constraint has read that: before the next step.
TEST_F(DecodeCoreTest, AConstraintReadsWhatWasDeliveredBeforeTheNextStep) {
  for (const bool fits : {true, false}) {
    SCOPED_TRACE(fits);
    v1::NodeCommand command = Run(fits ? "fits" : "does not", 4, 0);
    v1::SequenceSpec& sequence = *command.mutable_start_decode()->mutable_sequence();
    sequence.add_prompt('1');
    sequence.add_prompt(fits ? '2' : 'x');
    sequence.set_delivered_tokens(2);
    sequence.mutable_stop()->set_max_tokens(30);
    sequence.mutable_guided()->set_regex("[0-9]{3}");
    sequence.set_cache_salt(fits ? "" : "other");
    CompileFor(sequence);
    const node::NodeActions reserved = Send(command);
    ASSERT_THAT(reserved.events, SizeIs(1));
    ASSERT_TRUE(reserved.events[0].second.has_reserved());
    const uint64_t lease = reserved.events[0].second.reserved().lease_id();
    const node::NodeActions installed = Send(Installed(lease, '3', 2));
    ASSERT_THAT(installed.events, SizeIs(1));
    EXPECT_TRUE(installed.events[0].second.has_installed());
    EXPECT_TRUE(core_->preparing());
    const node::NodeActions ended = Step();
    ASSERT_THAT(ended.events, SizeIs(1));
    const v1::NodeEvent& event = ended.events[0].second;
    EXPECT_EQ(event.has_leg_finished(), fits);
    EXPECT_EQ(event.leg_finished().reason(), fits ? v1::FINISH_REASON_STOP : 0);
    EXPECT_EQ(event.leg_finished().output_tokens(), fits ? 3 : 0);
    EXPECT_EQ(event.leg_failed().request_at_fault(), !fits);
    EXPECT_FALSE(core_->preparing());
    EXPECT_TRUE(core_->idle());
  }
}

TEST_F(DecodeCoreTest, AFailedStepFailsItsLegsAndTheNodeGoesOn) {
  Send(Run("a", 4, -1));
  ASSERT_THAT(core_->PlanStep(now_), SizeIs(1));
  core_->OnStepDone(absl::DataLossError("block 3"), now_);
  const node::NodeActions actions = resources_->TakeActions();
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_EQ(actions.events[0].second.leg_failed().status().message(), "block 3");
  EXPECT_TRUE(core_->idle());
  EXPECT_THAT(resources_->CachedBlocks(), IsEmpty());
  Send(Run("b", 4, -1));
  EXPECT_THAT(Step().events, SizeIs(2));
}

TEST_F(DecodeCoreTest, AnAbortDuringAStepTakesEffectAfterIt) {
  Send(Run("a", 20, -1));
  const auto slices = core_->PlanStep(now_);
  Send(Abort("a"));
  EXPECT_EQ(used(), 2) << "the engine still writes these blocks";
  EXPECT_FALSE(core_->idle());
  core_->OnStepDone(engine_->Step(slices, [](int) {}), now_);
  EXPECT_THAT(resources_->TakeActions().events, IsEmpty());
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(core_->idle());
}

TEST_F(DecodeCoreTest, ALostRoutersLegsEndAndOthersStay) {
  Send(Run("a", 20));
  core_->OnCommand(node::RouterKey(8), Run("a", 30, -1), now_);
  resources_->TakeActions();
  core_->OnRouterLost(kRouter, now_);
  EXPECT_EQ(core_->load().blocks_quarantined(), 2);
  EXPECT_EQ(core_->load().sequences_waiting(), 1);
}

TEST_F(DecodeCoreTest, LearnsWhatItsStepsCostFromTheClockItIsGiven) {
  Send(Run("a", 40, /*local_max=*/40));
  const auto step = [&](absl::Duration time, bool fails) {
    const auto slices = core_->PlanStep(now_);
    now_ += time;
    core_->OnStepDone(fails ? absl::InternalError("broken") : engine_->Step(slices, [](int) {}),
                      now_);
  };
  step(absl::Milliseconds(40), false);
  step(absl::Milliseconds(5), false);
  EXPECT_EQ(resources_->step_profile().samples, 2);
  EXPECT_EQ(resources_->step_profile().actual_us, 45'000);
  step(absl::Milliseconds(7), true);  // a failed step teaches nothing
  EXPECT_EQ(resources_->step_profile().samples, 2);
}

}  // namespace
}  // namespace tandem::decode_node
