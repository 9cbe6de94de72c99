// A node's KV blocks in host memory and on disk, the tiers of its storage, as its core sees them.
// Sealed blocks are copied there in the background, in the order in which they were sealed. A
// prompt whose beginning lies there and not in memory waits until it has been read; then it is
// admitted as any other, and finds its beginning as prefix cache.
//
//   save    sealed ─▶ candidate ─SaveBlock─▶ saving ─BlockSaved─▶ stored, or not
//   load    WaitForLoad ─▶ loading ─BlocksLoaded─▶ prefix cache; the command comes back
//                             └─ too long ─▶ closing (quarantined) ─BlocksLoaded─▶ free
//
// A load that took too long, or for which no command or sequence waits any more, is cancelled: if
// the storage has not begun it, its blocks are free at once.
//
// A preempted sequence gets its blocks back in the same way (Resume): when there is room for all of
// it, and before it takes any. Preempting it costs nothing, because its blocks were copied before.
// A running sequence that has lost units of its KV with a creditor (sequence_rebuild.h) gets as
// many of their blocks as there is room for, and takes part in no step until they are here.
//
// Nothing here can fail a request: what cannot be read is computed. A load begins only if its
// blocks are predicted to be there sooner than computed ones, with what is ahead of either. What
// memory held under a hash that turned out to be wrong is forgotten in storage as well.
//
// Routers hear of a block once, wherever it lies: of the fastest tier that has it. It is removed
// for them when neither memory nor storage has it.
//
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
// Invariants: blocks that are being saved are not evicted; a block that is being read is found by
// its hash only after its bytes were verified; the blocks of a prompt that were in memory before
// its load are pinned during it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/cost/copy_profile.h"
#include "common/kv/block_pool.h"
#include "common/node/node_ledger.h"
#include "common/node/preemption.h"
#include "common/node/sequence.h"
#include "common/node/storage_times.h"
#include "common/storage/block_storage.h"

namespace tandem::node {

class StoredBlocks final : public StoredPrices {
 public:
  static constexpr size_t kSavesMax = 8;    // at a time
  static constexpr size_t kLoadsMax = 64;   // at a time; more prompts compute what they lack
  static constexpr size_t kUsedMax = 1024;  // uses in memory of which the storage has not heard
  static constexpr size_t kResumedMax = 4;  // preempted sequences that are looked at for a plan
  // A load that takes longer, or a quarter of its prompt's time, is given up. It brings only what
  // is predicted to be there in kPatienceFactor times less; the next load brings more.
  static constexpr absl::Duration kLoadTimeMax = absl::Seconds(2);
  // Of a load for a loan: its router waits for 1.5 s (LoanBroker::kTimeMax).
  static constexpr absl::Duration kLentLoadTimeMax = absl::Seconds(1);
  static constexpr int kPatienceFactor = 2;
  // A StartDecode that arrived so long ago waits for no further load. With the last load
  // (kLoadTimeMax) and a fetch from another node after it (PrefixFetch::kTimeMax), Reserved leaves
  // within 9 s. The router gives the node up after 10 s (RouterOptions::reserve_deadline).
  static constexpr absl::Duration kReserveTimeMax = absl::Seconds(5);
  // After a save failed: for how long nothing is saved.
  static constexpr absl::Duration kPause = absl::Seconds(30);

  // A command whose load has ended.
  struct Ready {
    RouterKey router;
    v1::NodeCommand command;  // with the time that is left
    absl::Time arrived;       // the first time; a prompt keeps its place in the queue
  };

  // `contents`: what the storage holds at the start; null: there is no storage, and nothing here
  // has an effect. `scheduler` and `ledger` outlive this.
  StoredBlocks(SequenceScheduler& scheduler, NodeLedger& ledger,
               const std::shared_ptr<const storage::StorageContents>& contents);
  // The scheduler refers to it.
  StoredBlocks(const StoredBlocks&) = delete;
  StoredBlocks& operator=(const StoredBlocks&) = delete;

  // Loads the beginning of a prompt that is to be computed or decoded here, if storage holds more
  // of it than memory. True: `command` waits and comes back from Handle or OnTick, unless Drop
  // takes it before; it may then wait again, a StartDecode until kReserveTimeMax after
  // `input.arrived`. Not for a prompt whose tokens are to be scored: they must be computed.
  // `time_allowed`: of the prompt.
  bool WaitForLoad(RouterKey router, const v1::Prefill& command, const SequenceInput& input,
                   absl::Duration time_allowed, absl::Time now);
  bool WaitForLoad(RouterKey router, const v1::StartDecode& command, const SequenceInput& input,
                   absl::Duration time_allowed, absl::Time now);
  // As above for the blocks that another node fetches from here. `arrived`: the command. No load
  // begins PrefixFetch::kTimeMax after that: the other node has given up.
  bool WaitForLoad(RouterKey router, const v1::SendBlocks& command, absl::Time arrived,
                   absl::Time now);
  // As above for lost units that are to be lent from here. The command comes back without `stored`:
  // it waits once.
  bool WaitForLoad(RouterKey router, const v1::LendBlocks& command, absl::Time now);
  // Call it before each plan: begins to load what the preempted sequences that go on next have in
  // storage, and what running ones have lost with creditors, and marks these sequences as being
  // read back until it is here.
  void Resume(absl::Time now);
  // For the scheduler, when it chooses which sequence to preempt: of the stored blocks at the
  // beginning, at the prices of the last Resume. What is stored is mostly a prefix (use_order.h),
  // so its end is found by bisection; nothing is read whose first block is not stored.
  Read ReadOf(absl::Span<const kv::BlockHash> hashes) const override;
  // Forgets a leg's waiting command of an older attempt than `attempt`. False if a command of this
  // attempt or a newer one waits.
  bool Drop(const LegKey& leg, uint32_t attempt);
  void OnRouterLost(RouterKey router);

  std::vector<Ready> Handle(const storage::StorageEvent& event, absl::Time now);
  // Gives up loads that take too long.
  std::vector<Ready> OnTick(absl::Time now);

  // Takes the pool's changes: begins to save what is new. Returns what routers shall hear.
  struct Changes {
    kv::BlockEvents memory;                                    // blocks_stored and blocks_removed
    storage::PerTier<std::vector<kv::BlockHash>> stored_only;  // in storage: by the fastest tier
  };
  Changes Take(kv::BlockEvents events);
  // The hashes that lie in storage and not in memory, by the fastest tier: for a router that joins.
  storage::PerTier<std::vector<kv::BlockHash>> StoredOnly() const;

  void AddTo(v1::NodeLoad& load) const;
  // Whether the node has storage.
  bool enabled() const { return !tiers_.empty(); }
  // What reading and writing cost, learned from what the storage thread measured; nullopt without
  // storage.
  std::optional<cost::StorageProfile> profile() const;
  // No command waits and no block is quarantined. Saves may go on.
  bool idle() const { return loads_.empty(); }

 private:
  struct Waiting {
    Ready ready;
    absl::Time since;
  };
  struct Load {
    std::vector<Waiting> waiting;  // Bound: the commands of routers that wait for blocks of a node
    std::vector<SequenceId> resumed;  // Bound: the node's sequences. They wait for it.
    absl::Time give_up;
    std::vector<BlockId> before;               // in memory already, pinned
    std::vector<storage::HashedBlock> blocks;  // to be read
    kv::BlockHash parent;                      // of the first; all zero: it begins the prompt
    bool closing = false;                      // given up: quarantined
    bool cancelled = false;                    // the storage was told so
  };
  // What a load is for.
  struct Wanted {
    size_t first = 0;    // the block that is lacked first may be this one, and none before it
    int64_t blocks = 0;  // of the prompt in all
    absl::Duration time_allowed;
    double engine_wait_us = 0;  // that passes anyway before the prompt is computed
  };
  // What is ahead of a prompt that is computed, and of a load.
  struct Waits {
    double engine_us = 0, storage_us = 0;
  };
  // The load that brings the first block that memory lacks: a new one, or one that runs; null if
  // there is none. `hashes`: of the prompt from its beginning.
  Load* Begin(absl::Span<const kv::BlockHash> hashes, const Wanted& wanted, absl::Time now);
  Load* BeginPrompt(const SequenceInput& input, absl::Duration time_allowed, absl::Time now);
  // The sequence waits for the load, if there is one.
  void ReadBack(SequenceId id, Load* load);
  void ReadLost(const Sequence& sequence, absl::Time now);
  // A prompt begins with these blocks: the storage hears of those that it has with the next save or
  // load, whether memory has them or not.
  void NoteUse(absl::Span<const kv::BlockHash> hashes);
  void Apply(const storage::BlockSaved& event, absl::Time now);
  std::vector<Ready> Apply(const storage::BlocksLoaded& event, absl::Time now);
  // Where blocks lie after a command for others. What was forgotten meanwhile stays so.
  void OnChanged(const std::vector<storage::BlockPlace>& changed);
  // The block lies in `tiers` from now on.
  void Place(const kv::BlockHash& hash, storage::TierSet tiers);
  storage::TierSet TiersOf(const kv::BlockHash& hash) const;
  // Those at the beginning that are predicted to be read in `time_us`. REQUIRES: all are stored.
  absl::Span<const kv::BlockHash> InTime(absl::Span<const kv::BlockHash> hashes, double time_us,
                                         absl::Time now) const;
  // How many of these blocks of a prompt, which are all stored, are there sooner when they are read
  // than when they are computed: all, or those at the beginning that lie in one tier, or none.
  int64_t Paying(int64_t first_block, absl::Span<const kv::BlockHash> hashes, const Waits& waits,
                 absl::Time now) const;
  // Whether these blocks of a prompt are there sooner when they are read.
  bool Pays(int64_t first_block, const StorageTimes::Blocks& blocks, const Waits& waits,
            absl::Time now) const;
  // By the tier that they are read from. REQUIRES: all are stored.
  StorageTimes::Blocks ByTier(absl::Span<const kv::BlockHash> hashes) const;
  // What the prompts take that are to be computed before one that comes now.
  double EngineWaitUs(int64_t prompt_tokens) const;
  static void Wait(Load& load, Ready command, absl::Time now);
  // Appends the load's commands to `ready`, with the time that is left to each.
  static void TakeWaiting(Load& load, absl::Time now, std::vector<Ready>& ready);
  void Cancel(storage::LoadId id, Load& load);
  // Cancels the loads for which no command or sequence waits any more.
  void CancelUnwanted();
  // Whether the storage has not answered since a load took too long: it gets no more of them.
  bool hangs() const;
  // The sequences that waited for it may take blocks.
  void EndResume(Load& load);
  // The load that a sequence waits for; null: none.
  const Load* LoadOf(SequenceId resumed) const;
  void Unpin(const std::vector<BlockId>& blocks);
  void StartSaves();
  // What the next command tells of uses.
  storage::UsedBlocks TakeUsed();
  // What one tier's part of a save came to.
  void OnSaveEnded(storage::StoreTier tier, const storage::BlockSaved& event, absl::Time now);
  // The tiers whose saves are not paused.
  storage::TierSet Writable() const;
  bool InMemory(const kv::BlockHash& hash) const {
    return scheduler_.pool().Find(hash).has_value();
  }

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  const storage::TierSet tiers_;  // that the node has
  // Bound: the storage's slots (--swap-space, --kv-disk-bytes). The tiers that have the block.
  absl::flat_hash_map<kv::BlockHash, storage::TierSet> stored_;
  storage::PerTier<int64_t> stored_in_;  // blocks of stored_, by tier
  // Bound: kLoadsMax, and those that were given up of a disk that hangs.
  std::map<storage::LoadId, Load> loads_;
  // Bound: the blocks of loads_. Those that are not given up, by what they bring.
  absl::flat_hash_map<kv::BlockHash, storage::LoadId> loading_;
  struct Candidate {
    kv::BlockHash hash, parent;
  };
  // Bound: --kv-blocks; older ones are not saved.
  std::deque<Candidate> candidates_;
  // Bound: kUsedMax; older ones are not told.
  std::deque<kv::BlockHash> used_;  // in the order of their use
  // Bound: kSavesMax. True: its contents turned out to be wrong meanwhile.
  absl::flat_hash_map<kv::BlockHash, bool> saving_;
  // Bound: the changes since Take.
  std::vector<kv::BlockHash> moved_;  // between tiers, out of storage or into it
  struct Tier {
    std::optional<absl::Time> paused_until;  // of saves
    bool failing = false;                    // the last save failed, and the log says so
  };
  storage::PerTier<Tier> by_tier_;
  StorageTimes times_;
  absl::Time priced_at_ = absl::InfinitePast();  // the last Resume
  uint64_t next_load_ = 1;
  bool gave_up_ = false;  // a load, since the storage last carried out a command
};

}  // namespace tandem::node
