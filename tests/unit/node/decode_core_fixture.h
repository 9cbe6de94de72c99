// A decode core with a hash engine, driven by hand: its commands, events and steps. Thread safety:
// none.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "decode_node/decode_core.h"
#include "tests/testing/status_matchers.h"

namespace tandem::decode_node {

inline const node::RouterKey kRouter(7);
inline constexpr int kBlocks = 8, kBlockTokens = 16;

class DecodeCoreTest : public ::testing::Test {
 protected:
  // What the tests of a suite choose; the rest is alike.
  struct Setup {
    int32_t unit_tokens = engine::HashEngineOptions().unit_tokens;
    int32_t context_tokens = 200;
    int64_t lend_blocks = 0;  // not 0: it borrows, too
    int64_t blocks = kBlocks;
    int64_t batch_tokens = 64;
    int32_t windowed_layers = 0, window_tokens = 0;
    std::shared_ptr<const storage::StorageContents> stored_blocks;  // null: no storage
    std::string node;                                               // its id
  };

  DecodeCoreTest() : DecodeCoreTest(Setup()) {}
  explicit DecodeCoreTest(const Setup& setup) : setup_(setup) { MakeFresh(); }
  void MakeFresh() {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    options.unit_tokens = setup_.unit_tokens;
    options.context_tokens = setup_.context_tokens;
    options.windowed_layers = setup_.windowed_layers;
    options.window_tokens = setup_.window_tokens;
    engine_ = *engine::NewHashEngine(options);
    if (setup_.windowed_layers > 0) engine_->SetWindowSlots(setup_.blocks);
    EXPECT_OK(engine_->AllocateKv(setup_.blocks));
    core_.reset();
    resources_ = std::make_unique<node::NodeResources>(node::SchedulerOptions{
        .spec = engine_->spec(),
        .self = NodeId(setup_.node),
        .num_blocks = setup_.blocks,
        .slots = setup_.windowed_layers > 0 ? engine_->arena().slots() : nullptr,
        .max_batch_tokens = setup_.batch_tokens,
        .max_sequences = 2,
        .max_waiting = 2,
        .borrows = setup_.lend_blocks > 0,
        .lend_blocks_max = setup_.lend_blocks,
        .constraints = constraints_,
        .stored_blocks = setup_.stored_blocks});
    core_ = std::make_unique<DecodeCore>(*resources_);
  }
  // As the ConstraintGate does, before the core gets the command.
  void CompileFor(const v1::SequenceSpec& sequence) {
    static_cast<void>(constraints_->Get(rpc::FromWire(sequence.guided())).status());
  }

  // Over the engine's 256 bytes; its special tokens satisfy no constraint.
  static std::shared_ptr<guided::ConstraintCache> Constraints() {
    std::vector<std::string> tokens(259);
    for (size_t b = 0; b < 256; ++b) tokens[b] = std::string(1, static_cast<char>(b));
    return std::make_shared<guided::ConstraintCache>(
        std::make_shared<const guided::Vocabulary>(std::move(tokens)));
  }

  static v1::NodeCommand Run(const std::string& id, int prompt_tokens, int local_max = 0,
                             uint32_t attempt = 1) {
    v1::NodeCommand command;
    v1::StartDecode& run = *command.mutable_start_decode();
    run.mutable_leg()->set_request_id(id);
    run.mutable_leg()->set_attempt(attempt);
    for (int i = 0; i < prompt_tokens; ++i) run.mutable_sequence()->add_prompt(i);
    run.mutable_sequence()->mutable_stop()->set_max_tokens(3);
    run.mutable_sequence()->mutable_sampling()->set_seed(1);
    run.set_local_prefill_tokens_max(local_max);
    run.set_deadline_s(5);
    return command;
  }
  static v1::NodeCommand Abort(const std::string& id, uint32_t attempt = 1) {
    v1::NodeCommand command;
    command.mutable_abort()->mutable_leg()->set_request_id(id);
    command.mutable_abort()->mutable_leg()->set_attempt(attempt);
    return command;
  }
  static v1::NodeCommand NewEpoch(const std::string& id, uint64_t lease, uint32_t epoch,
                                  int local_max = 0) {
    v1::NodeCommand command;
    command.mutable_new_epoch()->mutable_leg()->set_request_id(id);
    command.mutable_new_epoch()->mutable_leg()->set_attempt(1);
    command.mutable_new_epoch()->set_lease_id(lease);
    command.mutable_new_epoch()->set_epoch(epoch);
    command.mutable_new_epoch()->set_local_prefill_tokens_max(local_max);
    return command;
  }
  static transfer::LeaseInstalled Installed(uint64_t lease, TokenId token, int32_t index = 0) {
    transfer::LeaseInstalled installed{.lease = LeaseId(lease), .epoch = Epoch(1)};
    installed.first_token.set_token_id(token);
    installed.first_token.set_index(index);
    installed.bytes_received = 1000;
    installed.transfer_time = absl::Milliseconds(40);
    installed.receive_time = absl::Milliseconds(3);
    installed.hidden_time = absl::Milliseconds(2);
    installed.beyond_time = absl::Microseconds(500);
    installed.transport = "fake";
    return installed;
  }

  node::NodeActions Send(const v1::NodeCommand& command) {
    core_->OnCommand(kRouter, command, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Send(const transfer::TransferEvent& event) {
    core_->OnTransfer(event, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Step() {
    const auto slices = core_->PlanStep(now_);
    if (slices.empty()) return resources_->TakeActions();
    const auto sampled = engine_->Step(slices, [](int) {});
    now_ += step_time_;
    core_->OnStepDone(sampled, now_);
    return resources_->TakeActions();
  }
  static absl::Status Refusal(const node::NodeActions& actions) {
    if (actions.events.size() != 1 || !actions.events[0].second.has_refused()) {
      return absl::UnknownError("not refused");
    }
    const v1::StatusProto& status = actions.events[0].second.refused().status();
    return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
  }
  int64_t used() const { return core_->load().blocks_used(); }

  const Setup setup_;
  const std::shared_ptr<guided::ConstraintCache> constraints_ = Constraints();
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<node::NodeResources> resources_;
  std::unique_ptr<DecodeCore> core_;
  absl::Duration step_time_;  // that Step takes
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

}  // namespace tandem::decode_node
