#include "common/node/prefix_migration.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/node/receiver_of.h"
#include "common/telemetry/log.h"

namespace tandem::node {

// ---- sending end

void PrefixMigration::Offer(absl::Time now, absl::Time until) {
  if (!offered_.empty() || routers_.empty()) return;
  kv::BlockPool& pool = scheduler_.pool();
  // Pinned blocks cannot be evicted: leaves one free block for each sequence to grow into.
  const int64_t count =
      std::min<int64_t>(kBlocksMax, pool.counts().available() - scheduler_.size());
  std::vector<kv::BlockHash> hashes;
  for (const kv::BlockHash& hash : pool.MostRecentlyUsed(count)) {
    // Without the windowed layers' part a block is of no use to the node that adopts it.
    if (!pool.ReserveSlots(1)) break;
    const std::optional<BlockId> block = pool.PinWhole(hash);
    if (!block.has_value()) {
      pool.ReleaseSlots(1);
      continue;
    }
    offered_.emplace_back(hash, *block);
    hashes.push_back(hash);
  }
  if (offered_.empty()) return;
  router_ = *routers_.begin();
  until_ = until;
  v1::NodeEvent event;
  event.mutable_blocks_offered()->set_hashes(kv::PackHashes(hashes));
  event.mutable_blocks_offered()->set_deadline_s(absl::ToDoubleSeconds(until - now));
  ledger_.Send(router_, std::move(event));
}

void PrefixMigration::EndOffer() {
  // Leaves first: a prefix stays in the cache longer than what follows it.
  for (auto it = offered_.rbegin(); it != offered_.rend(); ++it)
    scheduler_.pool().UnpinWhole({&it->second, 1});
  scheduler_.pool().ReleaseSlots(std::ssize(offered_));
  offered_.clear();
  export_.reset();
}

std::vector<BlockId> PrefixMigration::Find(const v1::SendBlocks& command) const {
  std::vector<BlockId> blocks;
  absl::flat_hash_set<BlockId> seen;
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return {};
  for (const kv::BlockHash& hash : *hashes) {
    const auto found = std::find_if(offered_.begin(), offered_.end(),
                                    [&](const Block& block) { return block.first == hash; });
    const bool sound = found != offered_.end() && seen.insert(found->second).second &&
                       scheduler_.pool().MatchLength({&found->first, 1}) == 1;
    if (!sound) return {};
    blocks.push_back(found->second);
  }
  return blocks;
}

void PrefixMigration::OnSendBlocks(RouterKey router, const v1::SendBlocks& command) {
  if (command.hashes().empty() && command.lease_id() != 0)
    return GiveUp(LeaseId(command.lease_id()));
  if (offered_.empty() || export_.has_value() || router != router_) return;
  std::vector<BlockId> blocks = Find(command);
  if (blocks.empty()) return EndOffer();
  const auto count = static_cast<int32_t>(blocks.size());
  export_ = ledger_.NewExport();
  ledger_.Transfer(transfer::OpenExport{.export_id = *export_,
                                        .peer = ReceiverOf(command),
                                        .lease = LeaseId(command.lease_id()),
                                        .epoch = Epoch(command.epoch()),
                                        .blocks = std::move(blocks),
                                        .deadline = until_});
  ledger_.Transfer(transfer::PushRange{.export_id = *export_,
                                       .first_ordinal = 0,
                                       .ordinal_count = count,
                                       .first_layer = 0,
                                       .layer_count = scheduler_.spec().layout.num_layers});
  // These blocks belong to no sequence, so there is no first token.
  ledger_.Transfer(transfer::FinishExport{.export_id = *export_, .first_token = {}, .tokens = {}});
}

void PrefixMigration::OnRouterLost(RouterKey router) {
  routers_.erase(router);
  if (router == router_ && !export_.has_value()) EndOffer();
}

void PrefixMigration::OnTick(absl::Time now) {
  if (!offered_.empty() && !export_.has_value() && until_ <= now) EndOffer();
}

void PrefixMigration::Handle(const transfer::ExportDone& event) {
  if (export_ != event.export_id) return;
  ledger_.counters().set_kv_bytes_sent(ledger_.counters().kv_bytes_sent() + event.bytes_sent);
  Log(LogLevel::kInfo, "migrated prefix blocks to a peer", {{"bytes", event.bytes_sent}});
  EndOffer();
}

void PrefixMigration::Handle(const transfer::ExportFailed& event) {
  if (export_ != event.export_id) return;
  Log(LogLevel::kWarning, "could not migrate prefix blocks", {{"why", event.status.ToString()}});
  EndOffer();
}

// ---- receiving end

// Takes as many blocks as fit into half of the free ones, the most recently used first.
std::vector<kv::BlockHash> PrefixMigration::Wanted(const v1::AdoptBlocks& command) const {
  const kv::BlockPool& pool = scheduler_.pool();
  std::vector<kv::BlockHash> wanted;
  const auto hashes = kv::UnpackHashes(command.hashes());
  if (ledger_.draining() || adoptions_.size() >= kAdoptionsMax || !hashes.ok() ||
      static_cast<int64_t>(hashes->size()) > kBlocksMax) {
    return wanted;
  }
  const int64_t free = pool.windowed()
                           ? std::min(pool.counts().free, pool.slot_counts().available())
                           : pool.counts().free;
  const int64_t room = free / 2;
  absl::flat_hash_set<kv::BlockHash> seen;
  for (const kv::BlockHash& hash : *hashes) {
    if (static_cast<int64_t>(wanted.size()) >= room) break;
    if (seen.insert(hash).second && pool.MatchLength({&hash, 1}) == 0) wanted.push_back(hash);
  }
  return wanted;
}

void PrefixMigration::OnAdoptBlocks(RouterKey router, const v1::AdoptBlocks& command,
                                    absl::Time now) {
  v1::NodeEvent event;
  v1::BlocksWanted& answer = *event.mutable_blocks_wanted();
  answer.set_from_node_id(command.from_node_id());
  answer.set_from_incarnation(command.from_incarnation());
  const auto time_allowed = ParseDeadline(command.deadline_s());
  const std::vector<kv::BlockHash> wanted =
      time_allowed.ok() ? Wanted(command) : std::vector<kv::BlockHash>();
  if (!wanted.empty()) {
    kv::BlockPool& pool = scheduler_.pool();
    const std::vector<BlockId> blocks = *pool.Allocate(static_cast<int64_t>(wanted.size()));
    TANDEM_CHECK(pool.ReserveSlots(std::ssize(blocks)), wanted.size(), " slots were available");
    pool.AddSlots(blocks);
    const LeaseId lease = ledger_.NewLease();
    Adoption& adoption = adoptions_[lease];
    for (size_t i = 0; i < wanted.size(); ++i) {
      adoption.blocks.emplace_back(wanted[i], blocks[i]);
      if (TANDEM_MUTATED(kAdoptedUnseen)) pool.Seal(blocks[i], wanted[i]);
    }
    answer.set_hashes(kv::PackHashes(wanted));
    answer.set_lease_id(lease.value());
    answer.set_epoch(1);
    ledger_.Transfer(transfer::OpenLease{.lease = lease,
                                         .epoch = Epoch(1),
                                         .first_ordinal = 0,
                                         .blocks = blocks,
                                         .deadline = now + std::min(*time_allowed, kAdoptionMax)});
  }
  ledger_.Send(router, std::move(event));
}

void PrefixMigration::Handle(const transfer::LeaseInstalled& event) {
  const auto it = adoptions_.find(event.lease);
  if (it == adoptions_.end() || it->second.closing) return;
  kv::BlockPool& pool = scheduler_.pool();
  std::vector<Block>& blocks = it->second.blocks;
  // When this node has computed an equal block meanwhile, the received one is freed.
  if (!TANDEM_MUTATED(kAdoptedUnseen))
    for (const auto& [hash, block] : blocks) pool.Seal(block, hash);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block)
    pool.UnpinWhole({&block->second, 1});
  pool.ReleaseSlots(std::ssize(blocks));
  v1::NodeCounters& counters = ledger_.counters();
  counters.set_blocks_adopted(counters.blocks_adopted() + static_cast<int64_t>(blocks.size()));
  counters.set_kv_bytes_received(counters.kv_bytes_received() + event.bytes_received);
  adoptions_.erase(it);
}

void PrefixMigration::Handle(const transfer::LeaseFailed& event) { GiveUp(event.lease); }

void PrefixMigration::GiveUp(LeaseId lease) {
  const auto it = adoptions_.find(lease);
  if (it == adoptions_.end() || it->second.closing) return;
  it->second.closing = true;
  for (const auto& [hash, block] : it->second.blocks) scheduler_.pool().Quarantine(block);
  scheduler_.pool().ReleaseSlots(std::ssize(it->second.blocks));
  ledger_.Transfer(transfer::CloseLease{.lease = lease, .reason = "blocks did not arrive"});
}

void PrefixMigration::Handle(const transfer::LeaseDrained& event) {
  const auto it = adoptions_.find(event.lease);
  if (it == adoptions_.end() || !it->second.closing) return;
  for (const auto& [hash, block] : it->second.blocks) scheduler_.pool().EndQuarantine(block);
  adoptions_.erase(it);
}

}  // namespace tandem::node
