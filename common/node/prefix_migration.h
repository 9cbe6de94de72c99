// Moves prefix-cache blocks from a node that drains to a peer of the same role, so that the cache
// survives the node. This class is both ends (docs/adr/0021-a-draining-node-is-a-sender.md). Blocks
// are identified by their hashes alone; an ordinary KV transfer (lease and export) moves them.
//
//   sending end     Offer ─▶ offered ─SendBlocks─▶ sending ─ExportDone, ExportFailed─▶ gone
//                               └─ none wanted, router lost, time over ─▶ gone
//   receiving end   AdoptBlocks ─▶ leased ─LeaseInstalled─▶ prefix cache
//                                     └─LeaseFailed─▶ quarantined ─LeaseDrained─▶ free
//
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
// Invariants: offered blocks are pinned until the offer is gone and no send is in flight; an
// adopted block is found by its hash only after all of it arrived and was verified; nothing is
// evicted for an adopted block.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/kv/block_pool.h"
#include "common/node/node_ledger.h"

namespace tandem::node {

class PrefixMigration {
 public:
  static constexpr int64_t kBlocksMax = 256;   // of one offer
  static constexpr size_t kAdoptionsMax = 16;  // at a time
  // The longest that blocks wait for a sender, whatever it says: it drains, and sends at once what
  // takes seconds.
  static constexpr absl::Duration kAdoptionMax = absl::Seconds(30);

  // `scheduler` and `ledger` outlive this.
  PrefixMigration(SequenceScheduler& scheduler, NodeLedger& ledger)
      : scheduler_(scheduler), ledger_(ledger) {}

  void OnRouterJoined(RouterKey router) { routers_.insert(router); }
  // Pins the most recently used blocks and offers them, until `until`, to the router that has been
  // connected longest. Called at most once.
  void Offer(absl::Time now, absl::Time until);
  // The answer to an offer; with a lease and no hashes, to BlocksWanted: the sender has left.
  void OnSendBlocks(RouterKey router, const v1::SendBlocks& command);
  void OnAdoptBlocks(RouterKey router, const v1::AdoptBlocks& command, absl::Time now);
  void OnRouterLost(RouterKey router);
  void OnTick(absl::Time now);
  // Events of other leases and exports have no effect.
  void Handle(const transfer::LeaseInstalled& event);
  void Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event);
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event);

  bool idle() const { return offered_.empty() && adoptions_.empty(); }
  int64_t leases() const { return static_cast<int64_t>(adoptions_.size()); }
  int64_t exports() const { return export_.has_value() ? 1 : 0; }

 private:
  using Block = std::pair<kv::BlockHash, BlockId>;
  struct Adoption {
    std::vector<Block> blocks;  // by ordinal
    bool closing = false;       // quarantined
  };

  void EndOffer();
  // Ends an adoption whose blocks do not come any more. Nothing happens if there is none.
  void GiveUp(LeaseId lease);
  std::vector<kv::BlockHash> Wanted(const v1::AdoptBlocks& command) const;
  // Of the offered blocks, in order; empty when one is not among them or was forgotten since.
  std::vector<BlockId> Find(const v1::SendBlocks& command) const;

  SequenceScheduler& scheduler_;
  NodeLedger& ledger_;
  // Bound: kBlocksMax.
  std::vector<Block> offered_;
  // Bound: the configured routers.
  std::set<RouterKey> routers_;
  RouterKey router_;  // of the offer
  absl::Time until_;
  std::optional<transfer::ExportId> export_;
  // Bound: kAdoptionsMax.
  std::map<LeaseId, Adoption> adoptions_;
};

}  // namespace tandem::node
