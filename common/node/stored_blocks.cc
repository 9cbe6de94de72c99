#include "common/node/stored_blocks.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/cost/price_age.h"
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

}  // namespace

StoredBlocks::StoredBlocks(SequenceScheduler& scheduler, NodeLedger& ledger,
                           const std::shared_ptr<const std::vector<kv::BlockHash>>& contents)
    : scheduler_(scheduler), ledger_(ledger), enabled_(contents != nullptr) {
  if (enabled_) stored_.insert(contents->begin(), contents->end());
}

// ---- loading

bool StoredBlocks::Pays(int64_t first_block, int64_t blocks, absl::Time now) const {
  // Unknown yet: the first load tells.
  if (read_cost_.samples() == 0) return true;
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  cost::StepShape shape;
  shape.Add(first_block * layout.block_tokens, blocks * layout.block_tokens, /*sample=*/false);
  const cost::StepPrediction computing = scheduler_.meter().cost().Predict(shape);
  // Without reads for a while the price falls to 0, which is what an unknown one counts as.
  const double reading_us = cost::FadedPrice(read_cost_.PredictUs(blocks * layout.block_bytes()),
                                             /*prior=*/0, read_at_, now);
  return reading_us <= computing.us + computing.error_us;
}

StoredBlocks::Load* StoredBlocks::Begin(absl::Span<const kv::BlockHash> hashes,
                                        int64_t prompt_blocks, absl::Duration time_allowed,
                                        absl::Time now) {
  kv::BlockPool& pool = scheduler_.pool();
  const auto here = static_cast<size_t>(pool.MatchLength(hashes));
  if (here == hashes.size()) return nullptr;
  if (const auto it = loading_.find(hashes[here]); it != loading_.end())
    return &loads_.at(it->second);
  size_t end = here;
  while (end < hashes.size() && stored_.contains(hashes[end]) && !loading_.contains(hashes[end]))
    ++end;
  if (end == here || loads_.size() >= kLoadsMax) return nullptr;
  // The disk hangs: send it no command until it answers.
  const auto closing = [](const auto& entry) { return entry.second.closing; };
  if (std::any_of(loads_.begin(), loads_.end(), closing)) return nullptr;
  const auto count = static_cast<int64_t>(end - here);
  if (!Pays(static_cast<int64_t>(here), count, now)) return nullptr;
  Load load;
  load.before = pool.MatchBlocks(hashes.subspan(0, here));
  // With these pinned: room for the rest of the prompt, read or computed.
  if (pool.counts().available() < std::max(prompt_blocks - static_cast<int64_t>(here), count) ||
      !pool.ReserveSlots(count)) {
    Unpin(load.before);
    return nullptr;
  }
  const std::vector<BlockId> blocks = *pool.Allocate(count);
  pool.AddSlots(blocks);
  for (size_t i = 0; i < blocks.size(); ++i) load.blocks.emplace_back(hashes[here + i], blocks[i]);
  load.give_up = now + std::min(time_allowed / 4, kLoadTimeMax);
  const storage::LoadId id(next_load_++);
  for (const auto& [hash, block] : load.blocks) loading_.emplace(hash, id);
  ledger_.Store(storage::LoadBlocks{.load = id, .blocks = load.blocks});
  return &loads_.emplace(id, std::move(load)).first->second;
}

StoredBlocks::Load* StoredBlocks::BeginPrompt(const SequenceInput& input,
                                              absl::Duration time_allowed, absl::Time now) {
  if (stored_.empty() || input.prompt_logprobs.has_value()) return nullptr;
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  const auto prompt = static_cast<int64_t>(input.prompt.size());
  std::vector<kv::BlockHash> hashes = scheduler_.HashesOf(input);
  // At least the last token is computed, so that there is a row to sample from.
  const int64_t useful = std::min<int64_t>(std::ssize(hashes), (prompt - 1) / layout.block_tokens);
  hashes.resize(static_cast<size_t>(std::max<int64_t>(useful, 0)));
  return Begin(hashes, layout.BlocksFor(prompt), time_allowed, now);
}

bool StoredBlocks::Hold(RouterKey router, const v1::Prefill& command, const SequenceInput& input,
                        absl::Duration time_allowed, absl::Time now) {
  Load* load = BeginPrompt(input, time_allowed, now);
  if (load == nullptr) return false;
  v1::NodeCommand waiting;
  *waiting.mutable_prefill() = command;
  Wait(*load, router, std::move(waiting), now);
  return true;
}

bool StoredBlocks::Hold(RouterKey router, const v1::StartDecode& command,
                        const SequenceInput& input, absl::Duration time_allowed, absl::Time now) {
  Load* load = BeginPrompt(input, time_allowed, now);
  if (load == nullptr) return false;
  v1::NodeCommand waiting;
  *waiting.mutable_start_decode() = command;
  Wait(*load, router, std::move(waiting), now);
  return true;
}

bool StoredBlocks::Hold(RouterKey router, const v1::SendBlocks& command, absl::Time now) {
  if (stored_.empty()) return false;
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return false;
  Load* load = Begin(*hashes, std::ssize(*hashes), PrefixFetch::kTimeMax, now);
  if (load == nullptr) return false;
  v1::NodeCommand waiting;
  *waiting.mutable_send_blocks() = command;
  Wait(*load, router, std::move(waiting), now);
  return true;
}

void StoredBlocks::Resume(absl::Time now) {
  if (stored_.empty()) return;
  for (const SequenceId id : scheduler_.NextToResume(kResumedMax)) {
    const Sequence& sequence = scheduler_.Get(id);
    if (sequence.awaited) continue;
    const int64_t blocks = scheduler_.spec().layout.BlocksFor(std::ssize(sequence.tokens));
    // Those behind it wait until it has its blocks.
    if (blocks > scheduler_.block_counts().available()) return;
    Load* load = Begin(scheduler_.HashesToResume(id), blocks, 4 * kLoadTimeMax, now);
    if (load == nullptr) continue;
    load->resumed.push_back(id);
    scheduler_.SetAwaited(id, true);
  }
}

void StoredBlocks::EndResume(Load& load) {
  for (const SequenceId id : std::exchange(load.resumed, {})) scheduler_.SetAwaited(id, false);
}

void StoredBlocks::Unpin(const std::vector<BlockId>& blocks) {
  // Leaves first, so that a prefix stays in the cache longer than what follows it.
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
    scheduler_.pool().Unref(*block);
}

void StoredBlocks::Wait(Load& load, RouterKey router, v1::NodeCommand command, absl::Time now) {
  load.waiting.push_back(
      {.ready = {.router = router, .command = std::move(command)}, .since = now});
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
  if (paused_until_.has_value() && *paused_until_ <= now) paused_until_.reset();
  StartSaves();
  return ready;
}

std::vector<StoredBlocks::Ready> StoredBlocks::Apply(const storage::BlocksLoaded& event,
                                                     absl::Time now) {
  const auto it = loads_.find(event.load);
  Load& load = it->second;
  kv::BlockPool& pool = scheduler_.pool();
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_blocks_damaged(counters.blocks_damaged() +
                              static_cast<int64_t>(event.removed.size()));
  OnLeft(event.removed);
  if (event.loaded > 0) {
    read_cost_.Observe(event.bytes, absl::ToDoubleMicroseconds(event.time));
    read_at_ = now;
  }
  std::vector<Ready> ready;
  if (load.closing) {
    for (const auto& [hash, block] : load.blocks) pool.EndQuarantine(block);
  } else {
    counters.set_blocks_loaded(counters.blocks_loaded() + event.loaded);
    // When this node has computed an equal block meanwhile, the read one is freed.
    for (int64_t i = 0; i < event.loaded; ++i)
      pool.Seal(load.blocks[i].second, load.blocks[i].first);
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

void StoredBlocks::OnLeft(const std::vector<kv::BlockHash>& hashes) {
  for (const kv::BlockHash& hash : hashes) {
    if (stored_.erase(hash) > 0) left_.push_back(hash);
  }
}

void StoredBlocks::Apply(const storage::BlockSaved& event, absl::Time now) {
  const auto& [hash, block] = event.block;
  scheduler_.pool().EndSave(block);
  scheduler_.pool().ReleaseSlots(1);
  const auto saving = saving_.find(hash);
  const bool wrong = saving->second;
  saving_.erase(saving);
  OnLeft(event.removed);
  if (event.bytes > 0) write_cost_.Observe(event.bytes, absl::ToDoubleMicroseconds(event.time));
  v1::NodeCounters& counters = ledger_.counters();
  if (!event.status.ok()) {
    counters.set_saves_failed(counters.saves_failed() + 1);
    if (!std::exchange(failing_, true)) {
      Log(LogLevel::kWarning, "cannot store KV blocks, trying again after a pause",
          {{"why", event.status.ToString()}, {"pause", absl::FormatDuration(kPause)}});
    }
    paused_until_ = now + kPause;
    candidates_.clear();
    return StartSaves();
  }
  if (std::exchange(failing_, false)) Log(LogLevel::kInfo, "stores KV blocks again", {});
  if (wrong) {
    ledger_.Store(storage::ForgetBlock{.hash = hash});
  } else {
    counters.set_blocks_saved(counters.blocks_saved() + 1);
    stored_.insert(hash);
    saved_.push_back(hash);
  }
  StartSaves();
}

void StoredBlocks::StartSaves() {
  while (!candidates_.empty() && saving_.size() < kSavesMax && !paused_until_.has_value()) {
    const kv::BlockHash hash = candidates_.front();
    candidates_.pop_front();
    const std::optional<BlockId> block = scheduler_.pool().Find(hash);
    if (!block.has_value() || stored_.contains(hash) || saving_.contains(hash)) continue;
    // The file holds whole blocks.
    if (!scheduler_.pool().HasSlot(*block) || !scheduler_.pool().ReserveSlots(1)) continue;
    scheduler_.pool().BeginSave(*block);
    saving_.emplace(hash, false);
    ledger_.Store(storage::SaveBlock{.block = {hash, *block}});
  }
}

StoredBlocks::Changes StoredBlocks::Take(kv::BlockEvents events) {
  Changes changes;
  if (!enabled_) {
    changes.memory = std::move(events);
    return changes;
  }
  for (const kv::BlockHash& hash : events.wrong) {
    if (const auto saving = saving_.find(hash); saving != saving_.end()) saving->second = true;
    if (stored_.erase(hash) == 0) continue;
    ledger_.Store(storage::ForgetBlock{.hash = hash});
    left_.push_back(hash);
  }
  const int64_t blocks = scheduler_.block_counts().total;
  for (const kv::BlockHash& hash : events.stored) {
    if (stored_.contains(hash)) continue;
    candidates_.push_back(hash);
    if (std::ssize(candidates_) > blocks) candidates_.pop_front();
  }
  if (paused_until_.has_value()) candidates_.clear();
  StartSaves();
  // Only the present state counts, whatever changed in between: routers get one state of each
  // block.
  for (const kv::BlockHash& hash : std::exchange(left_, {})) events.removed.push_back(hash);
  for (const kv::BlockHash& hash : std::exchange(saved_, {})) {
    if (stored_.contains(hash) && !InMemory(hash)) changes.on_disk.push_back(hash);
  }
  for (const kv::BlockHash& hash : events.removed) {
    if (InMemory(hash)) continue;
    (stored_.contains(hash) ? changes.on_disk : changes.memory.removed).push_back(hash);
  }
  changes.memory.stored = std::move(events.stored);
  return changes;
}

void StoredBlocks::AddTo(v1::NodeLoad& load) const {
  load.set_blocks_stored(static_cast<int64_t>(stored_.size()));
  load.set_loads(static_cast<int64_t>(loads_.size()));
}

std::optional<cost::StorageProfile> StoredBlocks::profile() const {
  if (!enabled_) return std::nullopt;
  return cost::StorageProfile{.read = read_cost_.profile(), .write = write_cost_.profile()};
}

std::vector<kv::BlockHash> StoredBlocks::OnDiskOnly() const {
  std::vector<kv::BlockHash> hashes;
  for (const kv::BlockHash& hash : stored_) {
    if (!InMemory(hash)) hashes.push_back(hash);
  }
  // In the same order at equal contents.
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

std::vector<StoredBlocks::Ready> StoredBlocks::Handle(const storage::StorageEvent& event,
                                                      absl::Time now) {
  if (const auto* loaded = std::get_if<storage::BlocksLoaded>(&event)) return Apply(*loaded, now);
  Apply(std::get<storage::BlockSaved>(event), now);
  return {};
}

}  // namespace tandem::node
