// A decode core with storage of any size behind it, driven by hand: what it saves and loads is
// served when the test says so. Thread safety: none.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/node/stored_blocks.h"
#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {

class StoredBlocksTest : public DecodeCoreTest {
 protected:
  StoredBlocksTest() { MakeWith({}); }

  void MakeWith(std::vector<kv::BlockHash> contents) {
    core_.reset();
    resources_ = std::make_unique<node::NodeResources>(node::SchedulerOptions{
        .spec = engine_->spec(),
        .num_blocks = kBlocks,
        .max_batch_tokens = 64,
        .max_sequences = 2,
        .max_waiting = 2,
        .stored_blocks = std::make_shared<const std::vector<kv::BlockHash>>(std::move(contents))});
    core_ = std::make_unique<DecodeCore>(*resources_);
    Take();
  }
  // What the core did since the last call: routers' events are kept, storage commands wait.
  void Take() { Keep(resources_->TakeActions()); }
  void Keep(node::NodeActions actions) {
    for (auto& [router, event] : actions.events) events_.push_back(std::move(event));
    for (const v1::NodeEvent& event : actions.broadcast) Hear(event);
    for (storage::StorageCommand& command : actions.storage) pending_.push_back(std::move(command));
  }
  // A router's index: where it believes the block is.
  void Hear(const v1::NodeEvent& event) {
    const auto removed = kv::UnpackHashes(event.blocks_removed().hashes());
    for (const kv::BlockHash& hash : *removed) heard_.erase(hash);
    const auto stored = kv::UnpackHashes(event.blocks_stored().hashes());
    for (const kv::BlockHash& hash : *stored) heard_[hash] = event.blocks_stored().on_disk();
  }
  int64_t HeardOnDisk() const {
    return std::count_if(heard_.begin(), heard_.end(),
                         [](const auto& each) { return each.second; });
  }

  // ---- a disk of any size
  void ServeAll() {
    while (!pending_.empty()) {
      const storage::StorageCommand command = pending_.front();
      pending_.erase(pending_.begin());
      Serve(command);
    }
  }
  void Serve(const storage::StorageCommand& command) {
    if (const auto* save = std::get_if<storage::SaveBlock>(&command)) {
      disk_[save->block.first] = BytesOf(save->block.second);
      Answer(storage::BlockSaved{.block = save->block,
                                 .status = absl::OkStatus(),
                                 .bytes = engine_->spec().layout.block_bytes(),
                                 .time = save_time_});
    } else if (const auto* forget = std::get_if<storage::ForgetBlock>(&command)) {
      disk_.erase(forget->hash);
    } else {
      const auto& load = std::get<storage::LoadBlocks>(command);
      storage::BlocksLoaded loaded{.load = load.load, .time = load_time_};
      for (const auto& [hash, block] : load.blocks) {
        const auto it = disk_.find(hash);
        if (it == disk_.end()) {
          loaded.removed.push_back(hash);
          break;
        }
        SetBytes(block, it->second);
        ++loaded.loaded;
        loaded.bytes += engine_->spec().layout.block_bytes();
      }
      Answer(loaded);
    }
  }
  void Answer(const storage::StorageEvent& event) {
    core_->OnStorage(event, now_);
    Take();
  }
  std::string BytesOf(BlockId block) const {
    std::string bytes;
    for (int layer = 0; layer < engine_->spec().layout.num_layers; ++layer) {
      const auto cell = engine_->arena().Block(layer, block);
      bytes.append(reinterpret_cast<const char*>(cell.data()), cell.size());
    }
    return bytes;
  }
  void SetBytes(BlockId block, absl::string_view bytes) const {
    for (int layer = 0; layer < engine_->spec().layout.num_layers; ++layer) {
      const auto cell = engine_->arena().Block(layer, block);
      std::copy_n(bytes.data(), cell.size(), reinterpret_cast<char*>(cell.data()));
      bytes.remove_prefix(cell.size());
    }
  }

  // ---- requests
  // A prompt of `blocks` blocks and one token; prompts of different `kind` share nothing.
  static v1::NodeCommand Prompt(const std::string& id, int kind, int blocks, uint32_t attempt = 1) {
    v1::NodeCommand command = Run(id, 0, /*local_max=*/-1, attempt);
    auto& sequence = *command.mutable_start_decode()->mutable_sequence();
    for (int i = 0; i < blocks * kBlockTokens + 1; ++i) sequence.add_prompt((kind * 37 + i) % 250);
    return command;
  }
  // Starts it and steps until it has finished or waits for storage. Its tokens so far.
  void Start(const v1::NodeCommand& command) {
    core_->OnCommand(kRouter, command, now_);
    Take();
    StepAll();
  }
  void StepAll() {
    while (true) {
      const auto slices = core_->PlanStep(now_);
      if (slices.empty()) return;
      now_ += step_time_;
      core_->OnStepDone(engine_->Step(slices, [](int) {}), now_);
      Take();
    }
  }
  std::vector<TokenId> Serve(const std::string& id, int kind, int blocks) {
    Start(Prompt(id, kind, blocks));
    ServeAll();
    StepAll();
    ServeAll();
    return TokensOf(id);
  }
  std::vector<TokenId> TokensOf(const std::string& id) const {
    std::vector<TokenId> tokens;
    for (const v1::NodeEvent& event : events_) {
      for (const v1::TokensGenerated::Step& step : event.tokens().steps()) {
        if (step.leg().request_id() != id) continue;
        for (const v1::GeneratedToken& token : step.tokens()) tokens.push_back(token.token_id());
      }
    }
    return tokens;
  }
  // Of the leg's prompt.
  v1::TokensBySource SourcesOf(const std::string& id) const {
    for (const v1::NodeEvent& event : events_)
      if (event.has_installed() && event.installed().leg().request_id() == id)
        return event.installed().tokens();
    return {};
  }
  // Pushes everything out of memory that is not in use.
  void Crowd() {
    ++crowds_;
    Serve("crowd" + std::to_string(crowds_), 100 + crowds_, kBlocks - 1);
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(core_->load().blocks_used(), 0);
    EXPECT_EQ(core_->load().blocks_quarantined(), 0);
    EXPECT_EQ(core_->load().loads(), 0);
    EXPECT_TRUE(core_->idle());
  }

  std::vector<v1::NodeEvent> events_;
  std::map<kv::BlockHash, bool> heard_;
  std::vector<storage::StorageCommand> pending_;
  std::map<kv::BlockHash, std::string> disk_;
  absl::Duration load_time_ = absl::Microseconds(10), save_time_ = absl::Microseconds(20);
  absl::Duration step_time_ = absl::Milliseconds(5);
  int crowds_ = 0;
};

}  // namespace tandem::decode_node
