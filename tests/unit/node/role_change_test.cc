// Goal: a node's resources outlive its core. A core of the other role takes over when the node is
// idle, finds the prefix blocks of the first role, uses no id again, and steps by its own role's
// rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/node_resources.h"
#include "decode_node/decode_core.h"
#include "prefill_node/prefill_core.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::SizeIs;

const RouterKey kRouter(7);
constexpr int kBlocks = 16, kBlockTokens = 16, kPrompt = 70, kOutput = 5;

class RoleChangeTest : public ::testing::Test {
 protected:
  RoleChangeTest() : engine_(*engine::NewHashEngine(Options())) {
    EXPECT_OK(engine_->AllocateKv(kBlocks));
    resources_ = std::make_unique<NodeResources>(SchedulerOptions{.spec = engine_->spec(),
                                                                  .num_blocks = kBlocks,
                                                                  .max_batch_tokens = 64,
                                                                  .max_sequences = 4});
    resources_->OnRouterJoined(kRouter);
  }
  static engine::HashEngineOptions Options() {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    return options;
  }

  static void Fill(v1::Leg& leg, v1::SequenceSpec& sequence, const std::string& id, int first) {
    leg.set_request_id(id);
    leg.set_attempt(1);
    for (int i = 0; i < kPrompt; ++i) sequence.add_prompt(first + i);
    sequence.mutable_stop()->set_max_tokens(kOutput);
    sequence.mutable_stop()->set_ignore_eos(true);
  }
  static v1::NodeCommand Prefill(const std::string& id, int first = 0) {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    Fill(*prefill.mutable_leg(), *prefill.mutable_sequence(), id, first);
    prefill.set_lease_id(31);
    prefill.set_epoch(1);
    prefill.set_receiver_node_id("d");
    prefill.set_deadline_s(5);
    return command;
  }
  static v1::NodeCommand Start(const std::string& id, int first = 0) {
    v1::NodeCommand command;
    v1::StartDecode& start = *command.mutable_start_decode();
    Fill(*start.mutable_leg(), *start.mutable_sequence(), id, first);
    start.set_local_prefill_tokens_max(-1);
    start.set_deadline_s(5);
    return command;
  }
  // One step, and what the node wants afterwards.
  NodeActions Step(NodeCore& core) {
    const auto slices = core.PlanStep(now_);
    if (!slices.empty()) {
      for (const engine::SequenceSlice& slice : slices) rows_ += slice.num_new;
      core.OnStepDone(engine_->Step(slices, [&](int layer) { core.OnLayerDone(layer); }), now_);
    }
    return resources_->TakeActions();
  }
  // Computes a prompt as a prefill node, until the node is idle. The export's id.
  transfer::ExportId ComputePrompt(NodeCore& core, const std::string& id) {
    core.OnCommand(kRouter, Prefill(id), now_);
    transfer::ExportId opened;
    for (const auto& command : resources_->TakeActions().transfer)
      if (const auto* open = std::get_if<transfer::OpenExport>(&command)) opened = open->export_id;
    for (int i = 0; i < 4; ++i) Step(core);
    core.OnTransfer(transfer::ExportDone{opened, 1}, now_);
    EXPECT_TRUE(core.idle());
    return opened;
  }
  // Answers a prompt as a decode node, until the node is idle.
  std::vector<TokenId> Answer(NodeCore& core, const std::string& id) {
    core.OnCommand(kRouter, Start(id), now_);
    std::vector<TokenId> tokens;
    for (int i = 0; i < 20 && !core.idle(); ++i)
      for (const auto& [router, event] : Step(core).events)
        for (const v1::TokensGenerated::Step& step : event.tokens().steps())
          for (const v1::GeneratedToken& token : step.tokens()) tokens.push_back(token.token_id());
    EXPECT_TRUE(core.idle());
    return tokens;
  }
  static std::vector<TokenId> Expected() {
    std::vector<TokenId> all;
    for (int i = 0; i < kPrompt; ++i) all.push_back(i);
    for (int i = 0; i < kOutput; ++i)
      all.push_back(engine::HashEngineNextToken(Options(), all, request::SamplingParams(), 0));
    return {all.end() - kOutput, all.end()};
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<NodeResources> resources_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  int64_t rows_ = 0;  // computed
};

TEST_F(RoleChangeTest, ADecodeCoreFindsThePrefixThatAPrefillCoreComputed) {
  auto prefill = std::make_unique<prefill_node::PrefillCore>(*resources_);
  ComputePrompt(*prefill, "a");
  EXPECT_EQ(rows_, kPrompt);
  EXPECT_THAT(resources_->CachedBlocks(), SizeIs(kPrompt / kBlockTokens));
  prefill.reset();

  decode_node::DecodeCore decode(*resources_);
  EXPECT_EQ(decode.role(), v1::NODE_ROLE_DECODE);
  rows_ = 0;
  EXPECT_EQ(Answer(decode, "b"), Expected());
  EXPECT_EQ(rows_, kPrompt % kBlockTokens + kOutput - 1) << "the cached blocks' rows were computed";
  EXPECT_EQ(resources_->counters().prompt_tokens().cached(), kPrompt / kBlockTokens * kBlockTokens);
  EXPECT_EQ(resources_->counters().requests(), 2);
}

TEST_F(RoleChangeTest, NoIdIsUsedAgainAfterTheNodeWasOfTheOtherRole) {
  std::set<transfer::ExportId> exports;
  for (int i = 0; i < 3; ++i) {
    auto prefill = std::make_unique<prefill_node::PrefillCore>(*resources_);
    EXPECT_TRUE(exports.insert(ComputePrompt(*prefill, "a")).second);
    prefill.reset();
    decode_node::DecodeCore decode(*resources_);
    EXPECT_EQ(Answer(decode, "a"), Expected());
  }
}

// Two sequences share a step that fails. A decode core tries each of them alone; a prefill core,
// whose layers were pushed already, fails both. So it is after any number of changes.
TEST_F(RoleChangeTest, AFailedStepIsTriedAgainAsTheRoleOfTheMomentSays) {
  const auto fail_step = [&](NodeCore& core) {
    EXPECT_THAT(core.PlanStep(now_), SizeIs(2));
    core.OnStepDone(absl::InternalError("planted"), now_);
    int failed = 0;
    for (const auto& [router, event] : resources_->TakeActions().events)
      failed += event.has_leg_failed();
    return failed;
  };
  for (int i = 0; i < 2; ++i) {
    {
      prefill_node::PrefillCore prefill(*resources_);
      // Small enough that both join one step.
      for (const char* id : {"a", "b"}) {
        v1::NodeCommand command = Prefill(id, 100 + i);
        command.mutable_prefill()->mutable_sequence()->mutable_prompt()->Truncate(20);
        prefill.OnCommand(kRouter, command, now_);
      }
      std::vector<transfer::ExportId> opened;
      for (const auto& command : resources_->TakeActions().transfer)
        if (const auto* open = std::get_if<transfer::OpenExport>(&command))
          opened.push_back(open->export_id);
      EXPECT_EQ(fail_step(prefill), 2);
      for (const transfer::ExportId id : opened)
        prefill.OnTransfer(transfer::ExportFailed{id, absl::CancelledError("")}, now_);
      ASSERT_TRUE(prefill.idle());
    }
    decode_node::DecodeCore decode(*resources_);
    for (const char* id : {"c", "d"}) {
      v1::NodeCommand command = Start(id, 200 + i);
      command.mutable_start_decode()->mutable_sequence()->mutable_prompt()->Truncate(20);
      decode.OnCommand(kRouter, command, now_);
    }
    resources_->TakeActions();
    EXPECT_EQ(fail_step(decode), 0);
    for (int step = 0; step < 30 && !decode.idle(); ++step) Step(decode);
    ASSERT_TRUE(decode.idle());
  }
}

TEST_F(RoleChangeTest, NoCoreTakesOverANodeThatIsNotIdle) {
  prefill_node::PrefillCore prefill(*resources_);
  prefill.OnCommand(kRouter, Prefill("a"), now_);
  EXPECT_DEATH(decode_node::DecodeCore{*resources_}, "a core takes over");
}

}  // namespace
}  // namespace tandem::node
