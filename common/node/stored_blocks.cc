#include "common/node/stored_blocks.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "common/node/prefix_fetch.h"
#include "common/telemetry/log.h"

namespace tandem::node {
namespace {

// The leg of a command that may wait; null for one that has none.
const v1::Leg* LegOf(const v1::NodeCommand& command) {
  if (command.has_prefill()) return &command.prefill().leg();
  if (command.has_start_decode()) return &command.start_decode().leg();
  return nullptr;
}

// Takes the time that the command has waited off its deadline.
void Shorten(v1::NodeCommand& command, absl::Duration waited) {
  const auto shortened = [&](double seconds) {
    return std::max(1e-3, seconds - absl::ToDoubleSeconds(waited));
  };
  if (command.has_prefill()) {
    command.mutable_prefill()->set_deadline_s(shortened(command.prefill().deadline_s()));
  } else if (command.has_start_decode()) {
    command.mutable_start_decode()->set_deadline_s(shortened(command.start_decode().deadline_s()));
  }
}

absl::string_view NameOf(storage::StoreTier tier) {
  return tier == storage::StoreTier::kHost ? "host memory" : "disk";
}

// Notes of the blocks that were read which tier each came from, for the prompt that uses it first.
void NoteOrigins(absl::Span<const storage::HashedBlock> blocks,
                 const std::vector<storage::StoreTier>& from, kv::BlockPool& pool) {
  for (size_t i = 0; i < from.size(); ++i)
    pool.SetOrigin(blocks[i].second, from[i] == storage::StoreTier::kHost
                                         ? kv::BlockOrigin::kHostMemory
                                         : kv::BlockOrigin::kDisk);
}

v1::TierTotals& TotalsOf(v1::NodeCounters& counters, storage::StoreTier tier) {
  return tier == storage::StoreTier::kHost ? *counters.mutable_host_memory()
                                           : *counters.mutable_disk();
}

}  // namespace

StoredBlocks::StoredBlocks(SequenceScheduler& scheduler, NodeLedger& ledger,
                           const std::shared_ptr<const storage::StorageContents>& contents)
    : scheduler_(scheduler),
      ledger_(ledger),
      tiers_(contents != nullptr ? contents->tiers : storage::TierSet()),
      times_(tiers_, scheduler.spec().layout.block_bytes()) {
  if (contents == nullptr) return;
  scheduler.set_stored_prices(this);
  for (const kv::BlockHash& hash : contents->on_disk)
    Place(hash, storage::TierSet::Of(storage::StoreTier::kDisk));
  moved_.clear();  // no router has joined
}

storage::TierSet StoredBlocks::TiersOf(const kv::BlockHash& hash) const {
  const auto it = stored_.find(hash);
  return it == stored_.end() ? storage::TierSet() : it->second;
}

void StoredBlocks::Place(const kv::BlockHash& hash, storage::TierSet tiers) {
  const storage::TierSet before = TiersOf(hash);
  if (tiers == before) return;
  for (const storage::StoreTier tier : storage::kStoreTiers)
    stored_in_[tier] += int64_t{tiers.Has(tier)} - int64_t{before.Has(tier)};
  if (tiers.empty())
    stored_.erase(hash);
  else
    stored_[hash] = tiers;
  moved_.push_back(hash);
}

// ---- loading

bool StoredBlocks::WaitForLoad(RouterKey router, const v1::Prefill& command,
                               const SequenceInput& input, absl::Duration time_allowed,
                               absl::Time now) {
  Load* load = BeginPrompt(input, time_allowed, now);
  if (load == nullptr) return false;
  Ready waiting{.router = router, .arrived = input.arrived};
  *waiting.command.mutable_prefill() = command;
  Wait(*load, std::move(waiting), now);
  return true;
}

bool StoredBlocks::WaitForLoad(RouterKey router, const v1::StartDecode& command,
                               const SequenceInput& input, absl::Duration time_allowed,
                               absl::Time now) {
  if (now - input.arrived >= kReserveTimeMax) return false;
  Load* load = BeginPrompt(input, time_allowed, now);
  if (load == nullptr) return false;
  Ready waiting{.router = router, .arrived = input.arrived};
  *waiting.command.mutable_start_decode() = command;
  Wait(*load, std::move(waiting), now);
  return true;
}

bool StoredBlocks::WaitForLoad(RouterKey router, const v1::SendBlocks& command, absl::Time arrived,
                               absl::Time now) {
  if (stored_.empty() || now - arrived >= PrefixFetch::kTimeMax) return false;
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return false;
  Load* load =
      Begin(*hashes, {.blocks = std::ssize(*hashes), .time_allowed = PrefixFetch::kTimeMax}, now);
  if (load == nullptr) return false;
  Ready waiting{.router = router, .arrived = arrived};
  *waiting.command.mutable_send_blocks() = command;
  Wait(*load, std::move(waiting), now);
  return true;
}

bool StoredBlocks::WaitForLoad(RouterKey router, const v1::LendBlocks& command, absl::Time now) {
  if (stored_.empty()) return false;
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return false;
  Load* load =
      Begin(*hashes, {.blocks = std::ssize(*hashes), .time_allowed = kLentLoadTimeMax}, now);
  if (load == nullptr) return false;
  Ready waiting{.router = router, .arrived = now};
  *waiting.command.mutable_lend_blocks() = command;
  waiting.command.mutable_lend_blocks()->set_stored(false);
  Wait(*load, std::move(waiting), now);
  return true;
}

void StoredBlocks::Cancel(storage::LoadId id, Load& load) {
  if (!std::exchange(load.cancelled, true)) ledger_.Store(storage::CancelLoad{.load = id});
}

void StoredBlocks::CancelUnwanted() {
  for (auto& [id, load] : loads_) {
    std::erase_if(load.resumed,
                  [&](SequenceId resumed) { return scheduler_.Find(resumed) == nullptr; });
    if (load.waiting.empty() && load.resumed.empty()) Cancel(id, load);
  }
}

void StoredBlocks::EndResume(Load& load) {
  for (const SequenceId id : std::exchange(load.resumed, {})) scheduler_.SetReadingBack(id, false);
}

void StoredBlocks::Unpin(const std::vector<BlockId>& blocks) {
  // Leaves first, so that a prefix stays in the cache longer than what follows it.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
    scheduler_.pool().Unref(*block);
}

void StoredBlocks::Wait(Load& load, Ready command, absl::Time now) {
  load.waiting.push_back({.ready = std::move(command), .since = now});
}

void StoredBlocks::TakeWaiting(Load& load, absl::Time now, std::vector<Ready>& ready) {
  for (Waiting& waiting : load.waiting) {
    Shorten(waiting.ready.command, now - waiting.since);
    ready.push_back(std::move(waiting.ready));
  }
  load.waiting.clear();
}

bool StoredBlocks::Drop(const LegKey& leg, uint32_t attempt) {
  for (auto& [id, load] : loads_) {
    for (auto it = load.waiting.begin(); it != load.waiting.end(); ++it) {
      const v1::Leg* waiting = LegOf(it->ready.command);
      if (waiting == nullptr) continue;
      const LegKey other(it->ready.router, *waiting);
      if (leg < other || other < leg) continue;
      if (attempt <= waiting->attempt()) return false;
      load.waiting.erase(it);
      return true;
    }
  }
  return true;
}

void StoredBlocks::OnRouterLost(RouterKey router) {
  for (auto& [id, load] : loads_) {
    std::erase_if(load.waiting,
                  [&](const Waiting& waiting) { return waiting.ready.router == router; });
  }
}

std::vector<StoredBlocks::Ready> StoredBlocks::OnTick(absl::Time now) {
  std::vector<Ready> ready;
  for (auto& [id, load] : loads_) {
    if (load.closing || load.give_up > now) continue;
    load.closing = true;
    gave_up_ = true;
    Cancel(id, load);
    for (const auto& [hash, block] : load.blocks) {
      loading_.erase(hash);
      scheduler_.pool().Quarantine(block);
    }
    scheduler_.pool().ReleaseSlots(std::ssize(load.blocks));
    Unpin(std::exchange(load.before, {}));
    v1::NodeCounters& counters = ledger_.counters();
    counters.set_loads_given_up(counters.loads_given_up() + 1);
    Log(LogLevel::kInfo, "reading a prompt's beginning took too long, computing it", {});
    TakeWaiting(load, now, ready);
    EndResume(load);
  }
  for (const storage::StoreTier tier : storage::kStoreTiers)
    if (by_tier_[tier].paused_until <= now) by_tier_[tier].paused_until.reset();
  StartSaves();
  return ready;
}

std::vector<StoredBlocks::Ready> StoredBlocks::Apply(const storage::BlocksLoaded& event,
                                                     absl::Time now) {
  const auto it = loads_.find(event.load);
  Load& load = it->second;
  kv::BlockPool& pool = scheduler_.pool();
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_blocks_damaged(counters.blocks_damaged() + event.damaged);
  OnChanged(event.changed);
  times_.Handle(event, now);
  if (!absl::IsCancelled(event.status)) gave_up_ = false;
  const int64_t block_bytes = scheduler_.spec().layout.block_bytes();
  for (const storage::StoreTier tier : storage::kStoreTiers) {
    const storage::Copied& read = event.read[tier];
    if (read.bytes == 0) continue;
    v1::TierTotals& totals = TotalsOf(counters, tier);
    totals.set_bytes_read(totals.bytes_read() + read.bytes);
    totals.set_blocks_read(totals.blocks_read() + read.bytes / block_bytes);
  }
  std::vector<Ready> ready;
  if (load.closing) {
    for (const auto& [hash, block] : load.blocks) pool.EndQuarantine(block);
  } else {
    counters.set_blocks_loaded(counters.blocks_loaded() + event.loaded);
    // When this node has computed an equal block meanwhile, the read one is freed.
    for (int64_t i = 0; i < event.loaded; ++i)
      pool.Seal(load.blocks[i].second, load.blocks[i].first,
                i == 0 ? load.parent : load.blocks[i - 1].first);
    // Blocks for another node, or of a sequence that goes on, are nothing that a prompt found.
    const bool for_prompt =
        std::any_of(load.waiting.begin(), load.waiting.end(),
                    [](const Waiting& waiting) { return LegOf(waiting.ready.command) != nullptr; });
    if (for_prompt) NoteOrigins(load.blocks, event.from, pool);
    for (auto block = load.blocks.rbegin(); block != load.blocks.rend(); ++block) {
      loading_.erase(block->first);
      pool.UnpinWhole({&block->second, 1});
    }
    pool.ReleaseSlots(std::ssize(load.blocks));
    Unpin(load.before);
    TakeWaiting(load, now, ready);
    EndResume(load);
  }
  loads_.erase(it);
  return ready;
}

// ---- saving

void StoredBlocks::OnChanged(const std::vector<storage::BlockPlace>& changed) {
  for (const storage::BlockPlace& place : changed)
    if (stored_.contains(place.hash)) Place(place.hash, place.tiers);
}

void StoredBlocks::OnSaveEnded(storage::StoreTier tier, const storage::BlockSaved& event,
                               absl::Time now) {
  Tier& to = by_tier_[tier];
  v1::NodeCounters& counters = ledger_.counters();
  const storage::Copied& written = event.written[tier];
  if (const absl::Status& status = event.status[tier]; !status.ok()) {
    counters.set_saves_failed(counters.saves_failed() + 1);
    if (!std::exchange(to.failing, true)) {
      Log(LogLevel::kWarning, "cannot store KV blocks, trying again after a pause",
          {{"tier", NameOf(tier)},
           {"why", status.ToString()},
           {"pause", absl::FormatDuration(kPause)}});
    }
    to.paused_until = now + kPause;
  } else if (event.tiers.Has(tier) && std::exchange(to.failing, false)) {
    Log(LogLevel::kInfo, "stores KV blocks again", {{"tier", NameOf(tier)}});
  }
  if (written.bytes == 0) return;
  v1::TierTotals& totals = TotalsOf(counters, tier);
  totals.set_blocks_written(totals.blocks_written() + 1);
}

void StoredBlocks::Apply(const storage::BlockSaved& event, absl::Time now) {
  const auto& [hash, block] = event.block;
  scheduler_.pool().EndSave(block);
  scheduler_.pool().ReleaseSlots(1);
  const auto saving = saving_.find(hash);
  const bool wrong = saving->second;
  saving_.erase(saving);
  OnChanged(event.changed);
  times_.Handle(event, now);
  gave_up_ = false;
  for (const storage::StoreTier tier : storage::kStoreTiers) OnSaveEnded(tier, event, now);
  if (Writable().empty()) candidates_.clear();
  if (wrong) {
    if (!event.tiers.empty()) ledger_.Store(storage::ForgetBlock{.hash = hash});
  } else if (!event.tiers.empty()) {
    v1::NodeCounters& counters = ledger_.counters();
    if (!stored_.contains(hash)) counters.set_blocks_saved(counters.blocks_saved() + 1);
    Place(hash, event.tiers);
  }
  StartSaves();
}

storage::TierSet StoredBlocks::Writable() const {
  storage::TierSet tiers = tiers_;
  for (const storage::StoreTier tier : storage::kStoreTiers)
    if (by_tier_[tier].paused_until.has_value()) tiers.Remove(tier);
  return tiers;
}

storage::UsedBlocks StoredBlocks::TakeUsed() {
  const std::deque<kv::BlockHash> used = std::exchange(used_, {});
  return {used.begin(), used.end()};
}

void StoredBlocks::StartSaves() {
  const storage::TierSet writable = Writable();
  while (!candidates_.empty() && saving_.size() < kSavesMax && !writable.empty()) {
    const auto [hash, parent] = candidates_.front();
    candidates_.pop_front();
    const std::optional<BlockId> block = scheduler_.pool().Find(hash);
    const storage::TierSet lacking = writable.Without(TiersOf(hash));
    if (!block.has_value() || lacking.empty() || saving_.contains(hash)) continue;
    // The file holds whole blocks.
    if (!scheduler_.pool().HasSlot(*block) || !scheduler_.pool().ReserveSlots(1)) continue;
    scheduler_.pool().BeginSave(*block);
    saving_.emplace(hash, false);
    times_.OnSave();
    ledger_.Store(storage::SaveBlock{
        .block = {hash, *block}, .tiers = lacking, .parent = parent, .used = TakeUsed()});
  }
}

StoredBlocks::Changes StoredBlocks::Take(kv::BlockEvents events) {
  Changes changes;
  if (!enabled()) {
    changes.memory = std::move(events);
    return changes;
  }
  CancelUnwanted();
  for (const kv::BlockHash& hash : events.wrong) {
    if (const auto saving = saving_.find(hash); saving != saving_.end()) saving->second = true;
    if (!stored_.contains(hash)) continue;
    ledger_.Store(storage::ForgetBlock{.hash = hash});
    Place(hash, storage::TierSet());
  }
  const int64_t blocks = scheduler_.block_counts().total;
  for (size_t i = 0; i < events.stored.size(); ++i) {
    if (TiersOf(events.stored[i]) == tiers_) continue;
    candidates_.push_back({.hash = events.stored[i], .parent = events.parents[i]});
    if (std::ssize(candidates_) > blocks) candidates_.pop_front();
  }
  if (Writable().empty()) candidates_.clear();
  StartSaves();
  // Only the present state counts, whatever changed in between: routers get one state of each
  // block.
  for (const kv::BlockHash& hash : std::exchange(moved_, {})) events.removed.push_back(hash);
  absl::flat_hash_set<kv::BlockHash> told;
  for (const kv::BlockHash& hash : events.removed) {
    if (InMemory(hash) || !told.insert(hash).second) continue;
    const storage::TierSet tiers = TiersOf(hash);
    (tiers.empty() ? changes.memory.removed : changes.stored_only[tiers.fastest()]).push_back(hash);
  }
  changes.memory.stored = std::move(events.stored);
  return changes;
}

void StoredBlocks::AddTo(v1::NodeLoad& load) const {
  load.set_blocks_stored(static_cast<int64_t>(stored_.size()));
  load.set_blocks_in_host_memory(stored_in_.host);
  load.set_blocks_on_disk(stored_in_.disk);
  load.set_loads(static_cast<int64_t>(loads_.size()));
}

std::optional<cost::StorageProfile> StoredBlocks::profile() const {
  if (!enabled()) return std::nullopt;
  const auto of = [&](storage::StoreTier tier) -> std::optional<cost::TierProfile> {
    if (!tiers_.Has(tier)) return std::nullopt;
    return times_.profile(tier);
  };
  return cost::StorageProfile{.host = of(storage::StoreTier::kHost),
                              .disk = of(storage::StoreTier::kDisk)};
}

storage::PerTier<std::vector<kv::BlockHash>> StoredBlocks::StoredOnly() const {
  storage::PerTier<std::vector<kv::BlockHash>> hashes;
  for (const auto& [hash, tiers] : stored_) {
    if (!InMemory(hash)) hashes[tiers.fastest()].push_back(hash);
  }
  // In the same order at equal contents.
  for (const storage::StoreTier tier : storage::kStoreTiers)
    std::sort(hashes[tier].begin(), hashes[tier].end());
  return hashes;
}

std::vector<StoredBlocks::Ready> StoredBlocks::Handle(const storage::StorageEvent& event,
                                                      absl::Time now) {
  if (const auto* loaded = std::get_if<storage::BlocksLoaded>(&event)) return Apply(*loaded, now);
  Apply(std::get<storage::BlockSaved>(event), now);
  return {};
}

}  // namespace tandem::node
