// A decode core with storage of any size behind it, driven by hand: what it saves and loads is
// served when the test says so. Its storage is a disk, unless the test says otherwise. Thread
// safety: none.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/node/stored_blocks.h"
#include "tests/unit/node/block_bytes.h"
#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {

class StoredBlocksTest : public DecodeCoreTest {
 protected:
  StoredBlocksTest() : StoredBlocksTest(Setup()) {}
  explicit StoredBlocksTest(const Setup& setup) : DecodeCoreTest(setup) { MakeWith({}); }

  void MakeWith(std::vector<kv::BlockHash> on_disk) {
    core_.reset();
    host_.clear();
    resources_ = std::make_unique<node::NodeResources>(node::SchedulerOptions{
        .spec = engine_->spec(),
        .num_blocks = kBlocks,
        .max_batch_tokens = 64,
        .max_sequences = 2,
        .max_waiting = 2,
        .borrows = setup_.lend_blocks > 0,
        .lend_blocks_max = setup_.lend_blocks,
        .stored_blocks = std::make_shared<const storage::StorageContents>(
            storage::StorageContents{.tiers = tiers_, .on_disk = std::move(on_disk)})});
    core_ = std::make_unique<DecodeCore>(*resources_);
    Take();
  }
  // What the core did since the last call: routers' events and transfer
  // commands are kept, storage commands wait.
  void Take() { Keep(resources_->TakeActions()); }
  void Keep(node::NodeActions actions) {
    for (auto& [router, event] : actions.events) events_.push_back(std::move(event));
    for (const v1::NodeEvent& event : actions.broadcast) Hear(event);
    for (storage::StorageCommand& command : actions.storage) pending_.push_back(std::move(command));
    for (transfer::TransferCommand& command : actions.transfer)
      transfers_.push_back(std::move(command));
  }
  // A router's index: where it believes the block is.
  void Hear(const v1::NodeEvent& event) {
    const auto removed = kv::UnpackHashes(event.blocks_removed().hashes());
    for (const kv::BlockHash& hash : *removed) heard_.erase(hash);
    const auto stored = kv::UnpackHashes(event.blocks_stored().hashes());
    const v1::BlocksStored& where = event.blocks_stored();
    for (const kv::BlockHash& hash : *stored) {
      heard_[hash] = where.on_disk();
      if (where.in_host_memory())
        heard_in_host_.insert(hash);
      else
        heard_in_host_.erase(hash);
    }
  }
  // As the events for a router that joins have them.
  std::vector<kv::BlockHash> OnDiskOnly() const {
    for (const v1::NodeEvent& event : resources_->StoredOnlyEvents())
      if (!event.blocks_stored().in_host_memory())
        return *kv::UnpackHashes(event.blocks_stored().hashes());
    return {};
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
      storage::BlockSaved saved{.block = save->block};
      for (const storage::StoreTier tier : storage::kStoreTiers) {
        if (!tiers_.Has(tier) || !save->tiers.Has(tier)) continue;
        BlocksOf(tier)[save->block.first] = BytesOf(save->block.second);
        saved.written[tier] = {engine_->spec().layout.block_bytes(), save_time_};
      }
      saved.tiers = TiersOf(save->block.first);
      Answer(saved);
    } else if (const auto* forget = std::get_if<storage::ForgetBlock>(&command)) {
      disk_.erase(forget->hash);
      host_.erase(forget->hash);
    } else if (std::holds_alternative<storage::LoadBlocks>(command)) {
      // A cancel comes too late here: commands are carried out in their order.
      const auto& load = std::get<storage::LoadBlocks>(command);
      storage::BlocksLoaded loaded{.load = load.load};
      for (const auto& [hash, block] : load.blocks) {
        if (TiersOf(hash).empty()) {
          loaded.changed.push_back({hash, {}});
          ++loaded.damaged;
          break;
        }
        const storage::StoreTier tier = TiersOf(hash).fastest();
        SetBytes(block, BlocksOf(tier).at(hash));
        ++loaded.loaded;
        loaded.from.push_back(tier);
        loaded.read[tier].bytes += engine_->spec().layout.block_bytes();
        loaded.read[tier].time = tier == storage::StoreTier::kHost ? host_load_time_ : load_time_;
      }
      Answer(loaded);
    }
  }
  std::map<kv::BlockHash, std::string>& BlocksOf(storage::StoreTier tier) {
    return tier == storage::StoreTier::kHost ? host_ : disk_;
  }
  storage::TierSet TiersOf(const kv::BlockHash& hash) const {
    storage::TierSet tiers;
    if (host_.contains(hash)) tiers.Add(storage::StoreTier::kHost);
    if (disk_.contains(hash)) tiers.Add(storage::StoreTier::kDisk);
    return tiers;
  }
  // What a save of the disk came to when it failed.
  static storage::BlockSaved Refused(const storage::StorageCommand& command,
                                     const absl::Status& status) {
    return {.block = std::get<storage::SaveBlock>(command).block, .status = {.disk = status}};
  }
  void Answer(const storage::StorageEvent& event) {
    core_->OnStorage(event, now_);
    Take();
  }

  std::string BytesOf(BlockId block) const { return node::BytesOf(*engine_, block); }
  void SetBytes(BlockId block, absl::string_view bytes) const {
    node::SetBytes(*engine_, block, bytes);
  }

  // ---- requests
  // A prompt of `blocks` blocks and one token; prompts of different `kind` share nothing.
  static v1::NodeCommand Prompt(const std::string& id, int kind, int blocks, uint32_t attempt = 1) {
    v1::NodeCommand command = Run(id, 0, /*local_max=*/-1, attempt);
    auto& sequence = *command.mutable_start_decode()->mutable_sequence();
    for (int i = 0; i < blocks * kBlockTokens + 1; ++i) sequence.add_prompt((kind * 37 + i) % 250);
    return command;
  }
  // Of the prompt's whole blocks.
  std::vector<kv::BlockHash> HashesOf(int kind, int blocks) {
    const v1::NodeCommand command = Prompt("", kind, blocks);
    const auto& prompt = command.start_decode().sequence().prompt();
    node::SequenceInput input;
    input.prompt.assign(prompt.begin(), prompt.end());
    return resources_->scheduler().HashesOf(input);
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
  std::vector<transfer::TransferCommand> transfers_;
  std::map<kv::BlockHash, std::string> disk_, host_;
  std::set<kv::BlockHash> heard_in_host_;
  storage::TierSet tiers_ = storage::TierSet::Of(storage::StoreTier::kDisk);
  absl::Duration host_load_time_ = absl::Microseconds(1);
  absl::Duration load_time_ = absl::Microseconds(10), save_time_ = absl::Microseconds(20);
  absl::Duration step_time_ = absl::Milliseconds(5);
  int crowds_ = 0;
};

}  // namespace tandem::decode_node
