// A node with a hash engine that has the beginning of the prompt 0, 1, 2, ..., as far as a sequence
// of it went, and sends its blocks to who asks. Thread safety: none.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/node_resources.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {

class PrefixHolder {
 public:
  PrefixHolder(const engine::HashEngineOptions& options, int64_t blocks, int tokens)
      : num_layers_(options.num_layers) {
    engine_ = *engine::NewHashEngine(options);
    EXPECT_OK(engine_->AllocateKv(blocks));
    resources_ = std::make_unique<NodeResources>(SchedulerOptions{.spec = engine_->spec(),
                                                                  .num_blocks = blocks,
                                                                  .max_batch_tokens = 128,
                                                                  .max_sequences = 2});
    SequenceInput input;
    for (int i = 0; i < tokens; ++i) input.prompt.push_back(i);
    input.stop.max_tokens = 20;
    sequence_ = Run(std::move(input));
  }
  SequenceId Run(SequenceInput input) {
    SequenceScheduler& scheduler = resources_->scheduler();
    const auto id = scheduler.Admit(std::move(input), /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler.Schedule(*id);
    scheduler.FinishStep(engine_->Step(scheduler.PlanStep(), [](int) {}));
    return *id;
  }
  void EndSequence() { resources_->scheduler().Release(sequence_); }
  // What the router makes of `wanted`, and the KV plane's commands that answer it.
  std::vector<transfer::TransferCommand> Ask(const v1::BlocksWanted& wanted) {
    v1::NodeCommand command;
    v1::SendBlocks& send = *command.mutable_send_blocks();
    send.set_lease_id(wanted.lease_id());
    send.set_epoch(wanted.epoch());
    send.set_hashes(wanted.hashes());
    send.set_lent(wanted.lent());
    send.set_fetch(true);
    *send.mutable_tokens_after() = wanted.tokens_after();
    resources_->OnCommand(RouterKey(7), command, absl::FromUnixSeconds(1000));
    return resources_->TakeActions().transfer;
  }
  // Copies what `wanted` asks for into the blocks `leased` of `to`. Returns what FIN says.
  v1::TokensBySource Send(const v1::BlocksWanted& wanted, const std::vector<BlockId>& leased,
                          kv::BlockArena& to) {
    const auto commands = Ask(wanted);
    const auto& open = std::get<transfer::OpenExport>(commands.at(0));
    EXPECT_EQ(open.blocks.size(), leased.size());
    for (size_t i = 0; i < leased.size(); ++i) {
      for (int layer = 0; layer < num_layers_; ++layer) {
        const auto from = engine_->arena().Block(layer, open.blocks[i]);
        std::copy(from.begin(), from.end(), to.Block(layer, leased[i]).begin());
      }
    }
    resources_->Handle(transfer::ExportDone{open.export_id, 123});
    EXPECT_EQ(resources_->load().blocks_used(), 0);
    return std::get<transfer::FinishExport>(commands.at(2)).tokens;
  }

 private:
  const int num_layers_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<NodeResources> resources_;
  SequenceId sequence_;
};

}  // namespace tandem::node
