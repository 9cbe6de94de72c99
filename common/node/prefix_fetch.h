// Brings the beginning of a prompt's KV to the node that computes the rest from another node that
// holds it, so that it is not computed twice: a conversation's history lies on the decode node that
// generated it.
// This class is both ends. An ordinary KV transfer (lease and export) moves the blocks, as in
// PrefixMigration; they are named by their hashes. The history's last block is not full and has no
// hash: the sender finds it by the tokens that follow the others (part_index.h), sends it as one
// more block, and says in FIN how many of its rows are of these tokens.
//
//   receiving end   Begin ─▶ BlocksWanted to the router ─▶ leased ─LeaseInstalled─▶ prefix cache
//                                                             └─LeaseFailed─▶ quarantined
//                                                                ─LeaseDrained─▶ free
//   sending end     SendBlocks ─▶ sending ─ExportDone, ExportFailed─▶ gone
//                       └─ a block is gone: the receiver is told at once
//
// The sending end also sends the blocks of loans that move (lender.h) or come home (loan_home.h).
//
// A fetch that fails costs the prompt nothing but its time: the node then computes what it lacks.
//
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
// Invariants: blocks that are sent are pinned until their export ends, and no owner writes them; a
// fetched block is found by its hash or part only after all of the fetch arrived and was verified;
// while a fetch runs, the blocks of the prompt that were here before it are pinned.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/cost/fetch_time.h"
#include "common/kv/block_pool.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class PrefixFetch {
 public:
  static constexpr size_t kFetchesMax = 64;  // at a time; more prompts compute what they lack
  static constexpr size_t kSendsMax = 64;    // at a time; others are declined
  // A fetch that takes longer, or a quarter of its prompt's time, is given up: the holder was lost
  // before it began to send, or computing the tokens takes no longer.
  static constexpr absl::Duration kTimeMax = cost::kFetchTimeMax;

  // The node that holds the blocks.
  struct Holder {
    std::string node_id;
    uint64_t incarnation = 0;
  };

  // What a prompt asks for.
  struct Beginning {
    absl::Span<const kv::BlockHash> hashes;  // of its first blocks, as many as the holder has
    absl::Span<const TokenId> tokens_after;  // what follows them, less than a block's
    int64_t prompt_blocks = 0;               // that it needs in all
  };

  // `scheduler` and `ledger` outlive this.
  PrefixFetch(SequenceScheduler& scheduler, NodeLedger& ledger)
      : scheduler_(scheduler), ledger_(ledger) {}

  // Asks `router` for what is not here of a prompt's beginning. Returns the lease that it will come
  // under; nullopt if all full blocks are here, there is no room, or too many fetches run. The
  // fetch takes no room that the prompt would lack afterwards. `time_allowed`: of the prompt.
  std::optional<LeaseId> Begin(RouterKey router, const Holder& holder, const Beginning& beginning,
                               absl::Duration time_allowed, absl::Time now);
  void OnSendBlocks(const v1::SendBlocks& command, absl::Time now);
  // The router has found no holder.
  bool OnNoHolder(LeaseId lease);

  // Events of other leases and exports have no effect. True, here and above: this fetch is over,
  // and its prompt can be admitted.
  bool Handle(const transfer::LeaseInstalled& event);
  bool Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event);
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event);

  bool idle() const { return fetches_.empty() && sends_.empty(); }
  int64_t leases() const { return static_cast<int64_t>(fetches_.size()); }
  int64_t exports() const { return static_cast<int64_t>(sends_.size()); }

 private:
  struct Fetch {
    // Bound: the context's blocks.
    std::vector<BlockId> before;        // here already, pinned
    std::vector<kv::BlockHash> hashes;  // by ordinal, of those below
    kv::BlockHash parent;               // of the first; all zero: it begins the prompt
    std::vector<BlockId> blocks;
    // What follows, and the block for the rows of these tokens that the holder has.
    std::vector<TokenId> tokens_after;
    std::optional<BlockId> part;
    bool closing = false;  // quarantined
  };
  struct Send {
    std::vector<BlockId> blocks;               // pinned. Bound: the context's blocks
    std::optional<kv::PartIndex::Found> part;  // pinned
    bool lent = false;                         // without window slots
  };
  // Names what has arrived, of which the block `part` has so many rows, and lets it go.
  void Install(const Fetch& fetch, int64_t part_rows);
  // Whether a full block can be sent in the place of a part: where windows are of one token, full
  // blocks have no slots.
  bool FetchesParts() const { return scheduler_.pool().FirstWindowed(1) == 0; }
  // Whether a node with a prompt can have sent the tokens in `command`.
  bool AreTokensAfter(const v1::SendBlocks& command) const;
  // Pins the blocks that `command` names; fewer if some are not here.
  Send Pin(const v1::SendBlocks& command, absl::Span<const kv::BlockHash> hashes);
  std::optional<kv::PartIndex::Found> PinPart(const v1::SendBlocks& command,
                                              const kv::BlockHash& parent);
  void Unpin(const Send& send);
  void GiveUp(LeaseId lease, Fetch& fetch, const absl::Status& why);
  void EndSend(transfer::ExportId export_id);
  // Leaves first, so that a prefix stays in the cache longer than what follows it.
  void Unpin(const std::vector<BlockId>& blocks);
  void UnpinTail(const std::vector<BlockId>& blocks);

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  // Bound: kFetchesMax.
  std::map<LeaseId, Fetch> fetches_;
  // Bound: the exports of a node (4,096); all but kSendsMax are being declined.
  std::map<transfer::ExportId, Send> sends_;
};

}  // namespace tandem::node
