// Which loads begin, and how much each brings: implements these members of StoredBlocks
// (common/node/stored_blocks.h).
#include <algorithm>
#include <iterator>
#include <utility>

#include "common/node/stored_blocks.h"

namespace tandem::node {

bool StoredBlocks::Pays(int64_t first_block, const StorageTimes::Blocks& blocks, const Waits& waits,
                        absl::Time now) const {
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  cost::StepShape shape;
  shape.Add(first_block * layout.block_tokens, (blocks.host + blocks.disk) * layout.block_tokens,
            /*sample=*/false);
  const cost::StepPrediction computing = scheduler_.meter().cost().Predict(shape);
  return waits.storage_us + times_.ReadUs(blocks, now) <=
         waits.engine_us + computing.us + computing.error_us;
}

absl::Span<const kv::BlockHash> StoredBlocks::InTime(absl::Span<const kv::BlockHash> hashes,
                                                     double time_us, absl::Time now) const {
  StorageTimes::Blocks blocks;
  size_t count = 0;
  while (count < hashes.size()) {
    ++blocks[TiersOf(hashes[count]).fastest()];
    if (times_.ReadUs(blocks, now) > time_us) break;
    ++count;
  }
  return hashes.first(count);
}

int64_t StoredBlocks::Paying(int64_t first_block, absl::Span<const kv::BlockHash> hashes,
                             const Waits& waits, absl::Time now) const {
  if (hashes.empty()) return 0;
  const storage::StoreTier first = TiersOf(hashes.front()).fastest();
  const StorageTimes::Blocks all = ByTier(hashes);
  StorageTimes::Blocks alike;
  for (const kv::BlockHash& hash : hashes) {
    if (TiersOf(hash).fastest() != first) break;
    ++alike[first];
  }
  if (Pays(first_block, all, waits, now)) return std::ssize(hashes);
  return alike[first] < std::ssize(hashes) && Pays(first_block, alike, waits, now) ? alike[first]
                                                                                   : 0;
}

StorageTimes::Blocks StoredBlocks::ByTier(absl::Span<const kv::BlockHash> hashes) const {
  StorageTimes::Blocks blocks;
  for (const kv::BlockHash& hash : hashes) ++blocks[TiersOf(hash).fastest()];
  return blocks;
}

double StoredBlocks::EngineWaitUs(int64_t prompt_tokens) const {
  // A row of a prompt attends to half of it, on average; others' prompts are taken to be as long.
  const int64_t rows = scheduler_.prefill_tokens_waiting();
  if (rows == 0 || scheduler_.meter().cost().samples() == 0) return 0;
  return scheduler_.meter()
      .cost()
      .Predict({.prompt_rows = rows, .prompt_attended = rows * (prompt_tokens / 2)})
      .us;
}

StoredPrices::Read StoredBlocks::ReadOf(absl::Span<const kv::BlockHash> hashes) const {
  if (stored_.empty() || hashes.empty() || hangs()) return {};
  const auto stored = [this](const kv::BlockHash& hash) { return stored_.contains(hash); };
  if (!stored(hashes.front())) return {};
  // As mostly.
  const auto end = stored(hashes.back())
                       ? hashes.end()
                       : std::partition_point(hashes.begin(), hashes.end(), stored);
  StorageTimes::Blocks blocks;
  blocks[TiersOf(*std::prev(end)).fastest()] = end - hashes.begin();
  return {end - hashes.begin(), times_.ReadUs(blocks, priced_at_)};
}

StoredBlocks::Load* StoredBlocks::Begin(absl::Span<const kv::BlockHash> hashes,
                                        const Wanted& wanted, absl::Time now) {
  kv::BlockPool& pool = scheduler_.pool();
  const size_t here =
      wanted.first + static_cast<size_t>(pool.MatchLength(hashes.subspan(wanted.first)));
  if (here == hashes.size()) return nullptr;
  if (const auto it = loading_.find(hashes[here]); it != loading_.end())
    return &loads_.at(it->second);
  size_t end = here;
  while (end < hashes.size() && stored_.contains(hashes[end]) && !loading_.contains(hashes[end]))
    ++end;
  if (end == here || loads_.size() >= kLoadsMax) return nullptr;
  if (hangs()) return nullptr;
  const Waits waits{.engine_us = wanted.engine_wait_us, .storage_us = times_.AheadUs(now)};
  const absl::Duration patience = std::min(wanted.time_allowed / 4, kLoadTimeMax);
  const auto stored =
      InTime(hashes.subspan(here, end - here),
             absl::ToDoubleMicroseconds(patience / kPatienceFactor) - waits.storage_us, now);
  const int64_t count = Paying(static_cast<int64_t>(here), stored, waits, now);
  if (count == 0) return nullptr;
  // With those before them pinned: room for the rest of the prompt, read or computed.
  const auto before = hashes.subspan(wanted.first, here - wanted.first);
  if (pool.AvailableBeside(before) < std::max(wanted.blocks - static_cast<int64_t>(here), count) ||
      !pool.ReserveSlots(count)) {
    return nullptr;
  }
  Load load;
  load.before = pool.MatchBlocks(before);
  const std::vector<BlockId> blocks = *pool.Allocate(count);
  pool.AddSlots(blocks);
  for (size_t i = 0; i < blocks.size(); ++i) load.blocks.emplace_back(hashes[here + i], blocks[i]);
  load.parent = kv::ParentOf(hashes, here);
  load.give_up = now + patience;
  const storage::LoadId id(next_load_++);
  for (const auto& [hash, block] : load.blocks) loading_.emplace(hash, id);
  times_.OnLoad(id, ByTier(stored.first(static_cast<size_t>(count))), now);
  ledger_.Store(storage::LoadBlocks{.load = id, .blocks = load.blocks, .used = TakeUsed()});
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
  NoteUse(hashes);
  return Begin(hashes,
               {.blocks = layout.BlocksFor(prompt),
                .time_allowed = time_allowed,
                .engine_wait_us = EngineWaitUs(prompt)},
               now);
}

void StoredBlocks::Resume(absl::Time now) {
  priced_at_ = now;
  if (stored_.empty()) return;
  int64_t due = 0;  // blocks that those before it have yet to take
  for (const SequenceId id : scheduler_.NextToResume(kResumedMax)) {
    const Sequence& sequence = scheduler_.Get(id);
    const int64_t blocks = scheduler_.spec().layout.BlocksFor(std::ssize(sequence.tokens));
    const Load* load = nullptr;
    if (sequence.reading_back) {
      load = LoadOf(id);
    } else {
      // Those behind it wait until it has its blocks.
      if (blocks > scheduler_.block_counts().available() - due) break;
      Load* const begun = Begin(scheduler_.HashesToResume(id),
                                {.blocks = blocks, .time_allowed = 4 * kLoadTimeMax}, now);
      ReadBack(id, begun);
      load = begun;
    }
    const int64_t held = load == nullptr ? 0 : std::ssize(load->before) + std::ssize(load->blocks);
    due += std::max<int64_t>(0, blocks - held);
  }
  if (scheduler_.rebuilds().begun == scheduler_.rebuilds().done) return;
  for (const auto& [order, sequence] : scheduler_.running())
    if (!sequence->reading_back) ReadLost(*sequence, now);
}

void StoredBlocks::ReadBack(SequenceId id, Load* load) {
  if (load == nullptr) return;
  load->resumed.push_back(id);
  scheduler_.SetReadingBack(id, true);
}

void StoredBlocks::ReadLost(const Sequence& sequence, absl::Time now) {
  const OrdinalSpan lost = LostBlocks(sequence, scheduler_.spec());
  // The others go on, so each may need a block before the load ends.
  const int64_t spare = scheduler_.block_counts().available() - scheduler_.running_count();
  const int64_t room = std::min(lost.size(), spare);
  if (room <= 0) return;
  const auto hashes =
      absl::MakeConstSpan(sequence.hashes).first(static_cast<size_t>(lost.first + room));
  ReadBack(
      sequence.id,
      Begin(hashes, {.first = static_cast<size_t>(lost.first), .time_allowed = 4 * kLoadTimeMax},
            now));
}

const StoredBlocks::Load* StoredBlocks::LoadOf(SequenceId resumed) const {
  for (const auto& [id, load] : loads_)
    if (std::find(load.resumed.begin(), load.resumed.end(), resumed) != load.resumed.end())
      return &load;
  return nullptr;
}

void StoredBlocks::NoteUse(absl::Span<const kv::BlockHash> hashes) {
  for (const storage::StoreTier tier : storage::kStoreTiers) {
    // What a tier has is mostly a prefix. A use of its last block is one of those before it.
    const auto end =
        std::partition_point(hashes.begin(), hashes.end(),
                             [&](const kv::BlockHash& hash) { return TiersOf(hash).Has(tier); });
    if (end == hashes.begin() || (!used_.empty() && used_.back() == *std::prev(end))) continue;
    used_.push_back(*std::prev(end));
    if (used_.size() > kUsedMax) used_.pop_front();
  }
}

bool StoredBlocks::hangs() const {
  const auto closing = [](const auto& entry) { return entry.second.closing; };
  // A cancelled load leaves at once; what kept it from beginning does not.
  return (gave_up_ && !(loads_.empty() && saving_.empty())) ||
         std::any_of(loads_.begin(), loads_.end(), closing);
}

}  // namespace tandem::node
