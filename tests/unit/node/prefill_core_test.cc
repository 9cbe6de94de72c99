// Goal: the prefill core pushes each block and layer once, as soon as it is final, and nothing the
// receiver has; samples the first token at the prompt's end; keeps blocks pinned until the export
// has ended, whatever becomes of the leg.
#include "prefill_node/prefill_core.h"

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "tests/testing/status_matchers.h"

namespace tandem::prefill_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const node::RouterKey kRouter(7);
constexpr int kBlocks = 8, kBlockTokens = 16, kLayers = 4;

using OrdinalLayer = std::pair<int32_t, int32_t>;

class PrefillCoreTest : public ::testing::Test {
 protected:
  PrefillCoreTest() {
    engine_ = *engine::NewHashEngine({.num_layers = kLayers, .block_tokens = kBlockTokens});
    EXPECT_OK(engine_->AllocateKv(kBlocks));
    resources_ =
        std::make_unique<node::NodeResources>(node::SchedulerOptions{.spec = engine_->spec(),
                                                                     .num_blocks = kBlocks,
                                                                     .max_batch_tokens = 24,
                                                                     .max_sequences = 2,
                                                                     .constraints = constraints_});
    core_ = std::make_unique<PrefillCore>(*resources_);
  }

  static v1::NodeCommand Prefill(const std::string& id, int prompt_tokens, int first_ordinal = 0,
                                 uint32_t attempt = 1, uint32_t epoch = 1) {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    prefill.mutable_leg()->set_request_id(id);
    prefill.mutable_leg()->set_attempt(attempt);
    for (int i = 0; i < prompt_tokens; ++i) prefill.mutable_sequence()->add_prompt(i);
    prefill.mutable_sequence()->mutable_stop()->set_max_tokens(9);
    prefill.mutable_sequence()->set_delivered_tokens(2);
    prefill.set_lease_id(31);
    prefill.set_epoch(epoch);
    prefill.set_first_ordinal(first_ordinal);
    prefill.set_receiver_node_id("decode-0");
    prefill.set_receiver_incarnation(55);
    prefill.set_receiver_address("addr");
    prefill.set_receiver_host("box");
    prefill.set_deadline_s(5);
    return command;
  }
  node::NodeActions Send(const v1::NodeCommand& command) {
    core_->OnCommand(kRouter, command, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Send(const transfer::TransferEvent& event) {
    core_->OnTransfer(event, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Abort(const std::string& id) {
    v1::NodeCommand command;
    command.mutable_abort()->mutable_leg()->set_request_id(id);
    command.mutable_abort()->mutable_leg()->set_attempt(1);
    return Send(command);
  }
  // One step; `during` runs after the second layer.
  template <typename During>
  node::NodeActions Step(During during) {
    const auto slices = core_->PlanStep(now_);
    if (slices.empty()) return resources_->TakeActions();
    const auto result = engine_->Step(slices, [&](int layer) {
      core_->OnLayerDone(layer);
      if (layer == 1) during();
    });
    core_->OnStepDone(result, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Step() {
    return Step([] {});
  }
  static std::vector<OrdinalLayer> Pushed(const node::NodeActions& actions) {
    std::vector<OrdinalLayer> pushed;
    for (const auto& command : actions.transfer) {
      const auto* push = std::get_if<transfer::PushRange>(&command);
      if (push == nullptr) continue;
      for (int l = 0; l < push->layer_count; ++l) {
        for (int o = 0; o < push->ordinal_count; ++o) {
          pushed.emplace_back(push->first_ordinal + o, push->first_layer + l);
        }
      }
    }
    return pushed;
  }

  // Over the engine's bytes.
  static std::shared_ptr<guided::ConstraintCache> Constraints() {
    std::vector<std::string> tokens(259);
    for (size_t b = 0; b < 256; ++b) tokens[b] = std::string(1, static_cast<char>(b));
    return std::make_shared<guided::ConstraintCache>(
        std::make_shared<const guided::Vocabulary>(std::move(tokens)));
  }

  const std::shared_ptr<guided::ConstraintCache> constraints_ = Constraints();
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<node::NodeResources> resources_;
  std::unique_ptr<PrefillCore> core_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

// Prefill's last two tokens are of an answer that began elsewhere.
TEST_F(PrefillCoreTest, AnAnswerThatBreaksItsConstraintIsTheRequestsFault) {
  for (const bool fits : {true, false}) {
    SCOPED_TRACE(fits);
    v1::NodeCommand command = Prefill(fits ? "fits" : "does not", 20);
    v1::SequenceSpec& sequence = *command.mutable_prefill()->mutable_sequence();
    sequence.set_prompt(18, '1');
    sequence.set_prompt(19, fits ? '2' : 'x');
    sequence.mutable_guided()->set_regex("[0-9]{5}");
    ASSERT_OK(constraints_->Get(rpc::FromWire(sequence.guided())).status());
    Send(command);
    EXPECT_TRUE(core_->preparing());
    node::NodeActions actions = Step();
    EXPECT_FALSE(core_->preparing());
    v1::LegFailed failed;
    bool finished = false;
    for (const auto& [router, event] : actions.events) {
      if (event.has_leg_failed()) failed = event.leg_failed();
      finished |= event.has_prefill_finished();
    }
    EXPECT_EQ(finished, fits);
    EXPECT_EQ(failed.request_at_fault(), !fits);
    EXPECT_THAT(failed.status().message(), HasSubstr(fits ? "" : "breaks the constraint"));
  }
}

// The decode node tells the router that the answer is complete; the router aborts the prompt.
TEST_F(PrefillCoreTest, AnAnswerThatIsCompleteGetsNoToken) {
  v1::NodeCommand command = Prefill("whole", 20);
  v1::SequenceSpec& sequence = *command.mutable_prefill()->mutable_sequence();
  sequence.set_prompt(18, '1');
  sequence.set_prompt(19, '2');
  sequence.mutable_guided()->set_regex("[0-9]{2}");
  ASSERT_OK(constraints_->Get(rpc::FromWire(sequence.guided())).status());
  const node::NodeActions begun = Send(command);
  const auto open = std::get<transfer::OpenExport>(begun.transfer[0]);
  for (int step = 0; step < 3; ++step) EXPECT_THAT(Step().events, IsEmpty());
  EXPECT_FALSE(core_->preparing());
  Abort("whole");
  Send(transfer::ExportFailed{.export_id = open.export_id, .status = absl::CancelledError()});
  EXPECT_TRUE(core_->idle());
}

// Two prompts in one step, one of which begins with a cached block that has been damaged.
TEST_F(PrefillCoreTest, ADamagedBlockFailsOnlyThePromptThatUsesIt) {
  node::NodeActions actions = Send(Prefill("a", 20));
  const auto open = std::get<transfer::OpenExport>(actions.transfer[0]);
  Step();
  Send(transfer::ExportDone{.export_id = open.export_id});
  ASSERT_THAT(resources_->CachedBlocks(), SizeIs(1));
  engine_->arena().Block(/*layer=*/1, open.blocks[0])[3] ^= std::byte{4};

  Send(Prefill("again", 20));
  v1::NodeCommand other = Prefill("other", 4);
  other.mutable_prefill()->mutable_sequence()->set_prompt(0, 99);
  Send(other);
  actions = Step();
  int failed = 0, finished = 0;
  for (const auto& [router, event] : actions.events) {
    if (event.has_leg_failed()) {
      ++failed;
      EXPECT_EQ(event.leg_failed().leg().request_id(), "again");
      EXPECT_EQ(event.leg_failed().status().code(), static_cast<int>(absl::StatusCode::kDataLoss));
    }
    if (event.has_prefill_finished()) {
      ++finished;
      EXPECT_EQ(event.prefill_finished().leg().request_id(), "other");
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(finished, 1);
  EXPECT_THAT(resources_->CachedBlocks(), IsEmpty()) << "no lookup finds the damaged block";
}

TEST_F(PrefillCoreTest, ASequenceWithoutATokenToChooseFailsAloneAndForGood) {
  v1::NodeCommand without = Prefill("without", 4);
  without.mutable_prefill()->mutable_sequence()->mutable_sampling()->add_allowed_token_ids(5);
  Send(without);
  Send(Prefill("with", 4));
  ASSERT_THAT(core_->PlanStep(now_), SizeIs(2));
  core_->OnStepDone(std::vector<engine::SampledToken>{{.no_choice = true}, {.token = 65}}, now_);
  int failed = 0, finished = 0;
  for (const auto& [router, event] : resources_->TakeActions().events) {
    if (event.has_leg_failed()) {
      ++failed;
      EXPECT_EQ(event.leg_failed().leg().request_id(), "without");
      EXPECT_TRUE(event.leg_failed().request_at_fault());
      EXPECT_EQ(event.leg_failed().status().code(),
                static_cast<int>(absl::StatusCode::kInvalidArgument));
      EXPECT_THAT(event.leg_failed().status().message(), HasSubstr("at position 4"));
    }
    if (event.has_prefill_finished()) {
      ++finished;
      EXPECT_EQ(event.prefill_finished().leg().request_id(), "with");
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(finished, 1);
}

TEST_F(PrefillCoreTest, PushesLayerByLayerWhatEachChunkCompletes) {
  node::NodeActions actions = Send(Prefill("a", 40));
  ASSERT_THAT(actions.transfer, SizeIs(1));
  const auto& open = std::get<transfer::OpenExport>(actions.transfer[0]);
  EXPECT_EQ(open.peer.node, NodeId("decode-0"));
  EXPECT_EQ(open.peer.incarnation, Incarnation(55));
  EXPECT_EQ(open.peer.transport_address, "addr");
  EXPECT_EQ(open.peer.host, "box");
  EXPECT_EQ(open.lease, LeaseId(31));
  EXPECT_THAT(open.blocks, SizeIs(3));
  EXPECT_EQ(open.deadline, now_ + absl::Seconds(5));

  actions = Step();  // rows 0..23: block 0 is complete
  EXPECT_EQ(Pushed(actions), (std::vector<OrdinalLayer>{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
  EXPECT_THAT(actions.events, IsEmpty());

  actions = Step();  // rows 24..39: block 1, and block 2 as far as the prompt goes
  EXPECT_EQ(Pushed(actions), (std::vector<OrdinalLayer>{
                                 {1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}}));
  const auto& finish = std::get<transfer::FinishExport>(actions.transfer.back());
  ASSERT_THAT(actions.events, SizeIs(2));
  const v1::GeneratedToken& token = actions.events[0].second.tokens().steps(0).tokens(0);
  EXPECT_EQ(token.index(), 2) << "two tokens were delivered before";
  EXPECT_EQ(finish.first_token.token_id(), token.token_id());
  EXPECT_EQ(actions.events[1].second.prefill_finished().tokens().computed(), 40);

  // The slot is free, the blocks are pinned until the receiver has them.
  EXPECT_EQ(core_->load().sequences_running(), 0);
  EXPECT_EQ(core_->load().exports(), 1);
  EXPECT_EQ(core_->load().blocks_used(), 3);
  EXPECT_TRUE(Send(transfer::ExportDone{transfer::ExportId(1), 123}).events.empty());
  EXPECT_EQ(core_->load().blocks_cached(), 2);
  EXPECT_EQ(core_->load().blocks_used(), 0);
  EXPECT_EQ(resources_->counters().kv_bytes_sent(), 123);
  EXPECT_TRUE(core_->idle());
}

TEST_F(PrefillCoreTest, CachedBlocksAreSentAtOnceAndTheReceiversOwnNever) {
  Send(Prefill("a", 64));
  while (core_->load().sequences_running() + core_->load().sequences_waiting() > 0) Step();
  Send(transfer::ExportDone{transfer::ExportId(1), 1});

  // Blocks 0..2 are cached here (the last token must be computed), block 0 is there already.
  node::NodeActions actions = Send(Prefill("b", 64, /*first_ordinal=*/1));
  std::vector<OrdinalLayer> pushed = Pushed(actions);
  EXPECT_THAT(pushed, SizeIs(2 * kLayers));
  actions = Step();
  for (const OrdinalLayer& p : Pushed(actions)) pushed.push_back(p);
  EXPECT_THAT(pushed, SizeIs(3 * kLayers));
  EXPECT_THAT(std::set<OrdinalLayer>(pushed.begin(), pushed.end()), SizeIs(3 * kLayers));
  for (const OrdinalLayer& p : pushed) EXPECT_GE(p.first, 1);
  const v1::TokensBySource& tokens = actions.events[1].second.prefill_finished().tokens();
  EXPECT_EQ(tokens.cached(), 48);
  EXPECT_EQ(tokens.computed(), 16);

  // The receiver has more than this node: its blocks are computed here but not sent.
  v1::NodeCommand command = Prefill("c", 40, /*first_ordinal=*/2);
  command.mutable_prefill()->mutable_sequence()->set_cache_salt("other");
  pushed = Pushed(Send(command));
  for (int i = 0; i < 2; ++i) {
    for (const OrdinalLayer& p : Pushed(Step())) pushed.push_back(p);
  }
  EXPECT_EQ(pushed, (std::vector<OrdinalLayer>{{2, 0}, {2, 1}, {2, 2}, {2, 3}}));
}

TEST_F(PrefillCoreTest, AnAbortDuringAStepStopsPushingAndPinsUntilTheExportEnds) {
  Send(Prefill("a", 20));
  std::vector<transfer::TransferCommand> commands;
  const auto keep = [&](node::NodeActions actions) {
    for (auto& command : actions.transfer) commands.push_back(std::move(command));
    EXPECT_THAT(actions.events, IsEmpty());
  };
  keep(Step([&] { keep(Abort("a")); }));
  // Layers 0 and 1 were pushed, then the export was cancelled, then nothing more.
  ASSERT_THAT(commands, SizeIs(3));
  EXPECT_TRUE(std::holds_alternative<transfer::CancelExport>(commands.back()));
  EXPECT_TRUE(Abort("a").empty());
  EXPECT_EQ(core_->load().blocks_used(), 2);
  EXPECT_FALSE(core_->idle());
  EXPECT_THAT(Send(transfer::ExportFailed{transfer::ExportId(1), absl::CancelledError("x")}).events,
              IsEmpty());
  EXPECT_EQ(core_->load().blocks_used(), 0);
  EXPECT_TRUE(core_->idle());
}

TEST_F(PrefillCoreTest, FailuresSayWhetherTheLeaseStands) {
  // The export fails.
  Send(Prefill("a", 20));
  node::NodeActions actions =
      Send(transfer::ExportFailed{transfer::ExportId(1), absl::UnavailableError("peer lost")});
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_TRUE(actions.events[0].second.leg_failed().sender_side());
  EXPECT_EQ(actions.events[0].second.leg_failed().status().message(), "peer lost");
  EXPECT_TRUE(core_->idle());

  // The step fails: the export is cancelled.
  Send(Prefill("b", 20));
  core_->PlanStep(now_);
  core_->OnStepDone(absl::InternalError("engine"), now_);
  actions = resources_->TakeActions();
  EXPECT_EQ(actions.events.at(0).second.leg_failed().status().message(), "engine");
  EXPECT_FALSE(actions.events.at(0).second.leg_failed().sender_side())
      << "pushed bytes are in doubt";
  EXPECT_TRUE(std::holds_alternative<transfer::CancelExport>(actions.transfer.at(0)));
  EXPECT_THAT(core_->PlanStep(now_), IsEmpty());
  Send(transfer::ExportFailed{transfer::ExportId(2), absl::CancelledError("x")});

  // The deadline passes, without traffic.
  Send(Prefill("c", 20));
  now_ += absl::Seconds(5);
  core_->OnTick(now_);
  core_->OnTick(now_);
  actions = resources_->TakeActions();
  ASSERT_THAT(actions.events, SizeIs(1));
  EXPECT_EQ(actions.events[0].second.leg_failed().status().code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(actions.transfer, SizeIs(1));
  EXPECT_EQ(core_->load().blocks_used(), 2);
}

TEST_F(PrefillCoreTest, RefusesWhatCannotBeTakenOn) {
  const auto refused = [&](const v1::NodeCommand& command, absl::StatusCode code,
                           const char* what) {
    const node::NodeActions actions = Send(command);
    ASSERT_THAT(actions.events, SizeIs(1));
    const v1::StatusProto& status = actions.events[0].second.refused().status();
    EXPECT_EQ(status.code(), static_cast<int>(code)) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(what));
    EXPECT_THAT(actions.transfer, IsEmpty());
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  refused(Prefill("a", 20, 2), kInvalid, "first_ordinal: 2, expected one in [0, 2)");
  refused(Prefill("a", 20, -1), kInvalid, "first_ordinal: -1");
  refused(Prefill("a", 129), kInvalid, "needs 9 KV blocks, this node has 8");
  v1::NodeCommand run;
  run.mutable_start_decode()->mutable_leg()->set_request_id("a");
  refused(run, kInvalid, "sent to a prefill node");
  EXPECT_TRUE(core_->idle());
  Send(Prefill("b", 100));
  refused(Prefill("c", 20), absl::StatusCode::kResourceExhausted, "2 blocks are needed, 1 of 8");
  core_->BeginDrain(now_, absl::Seconds(1));
  resources_->TakeActions();
  refused(Prefill("d", 4), absl::StatusCode::kUnavailable, "this node is draining");
}

TEST_F(PrefillCoreTest, WhatIsDueFirstIsComputedFirst) {
  v1::NodeCommand batch = Prefill("batch", 30), chat = Prefill("chat", 31);
  batch.mutable_prefill()->set_first_token_due_us(60'000'000);
  chat.mutable_prefill()->set_first_token_due_us(200'000);
  Send(batch);
  now_ += absl::Milliseconds(10);
  Send(chat);
  EXPECT_EQ(core_->PlanStep(now_).front().tokens.size(), 31);
}

TEST_F(PrefillCoreTest, ANewerEpochOfTheSameLegReplacesTheExport) {
  Send(Prefill("a", 20));
  EXPECT_TRUE(Send(Prefill("a", 20)).empty()) << "the same command twice";
  const node::NodeActions actions = Send(Prefill("a", 20, 0, /*attempt=*/1, /*epoch=*/2));
  ASSERT_THAT(actions.transfer, SizeIs(2));
  EXPECT_EQ(std::get<transfer::CancelExport>(actions.transfer[0]).export_id, transfer::ExportId(1));
  EXPECT_EQ(std::get<transfer::OpenExport>(actions.transfer[1]).epoch, Epoch(2));
}

}  // namespace
}  // namespace tandem::prefill_node
