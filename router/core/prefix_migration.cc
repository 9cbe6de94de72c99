#include "router/core/prefix_migration.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/telemetry/log.h"

namespace tandem::router {

const Node* PrefixMigration::SuccessorOf(const Node& node) const {
  const Node* best = nullptr;
  for (const Node* other : fleet_.nodes()) {
    if (other->role != node.role || other->draining || other->key == node.key) continue;
    if (best == nullptr || other->load.blocks_free() > best->load.blocks_free()) best = other;
  }
  return best;
}

absl::Status PrefixMigration::OnBlocksOffered(const Node& node, const v1::BlocksOffered& offered) {
  const auto hashes = kv::UnpackHashes(offered.hashes());
  if (!hashes.ok()) return hashes.status();
  std::vector<kv::BlockHash> missing;
  for (const kv::BlockHash& hash : *hashes) {
    if (!index_.HeldBy(GroupOf(node.role), hash)) missing.push_back(hash);
  }
  const Node* successor = node.draining ? SuccessorOf(node) : nullptr;
  if (successor == nullptr || missing.empty()) {
    v1::NodeCommand none;
    none.mutable_send_blocks();
    actions_.commands.emplace_back(node.key, std::move(none));
    return absl::OkStatus();
  }
  v1::NodeCommand command;
  v1::AdoptBlocks& adopt = *command.mutable_adopt_blocks();
  adopt.set_hashes(kv::PackHashes(missing));
  adopt.set_from_node_id(node.id.value());
  adopt.set_from_incarnation(node.incarnation.value());
  adopt.set_deadline_s(std::min(offered.deadline_s(), kOfferSecondsMax));
  Log(LogLevel::kInfo, "offered a draining node's prefix blocks to a peer",
      {{"from", node.id.value()}, {"to", successor->id.value()}, {"blocks", missing.size()}});
  actions_.commands.emplace_back(successor->key, std::move(command));
  return absl::OkStatus();
}

void PrefixMigration::OnBlocksWanted(const Node& node, const v1::BlocksWanted& wanted) {
  bool found = false;
  for (const Node* from : fleet_.nodes()) {
    if (from->id.value() != wanted.from_node_id() ||
        from->incarnation.value() != wanted.from_incarnation())
      continue;
    found = true;
    v1::NodeCommand command;
    v1::SendBlocks& send = *command.mutable_send_blocks();
    send.set_lease_id(wanted.lease_id());
    send.set_epoch(wanted.epoch());
    send.set_hashes(wanted.hashes());
    send.set_fetch(wanted.fetch());
    send.set_lent(wanted.lent());
    *send.mutable_tokens_after() = wanted.tokens_after();
    send.set_receiver_node_id(node.id.value());
    send.set_receiver_incarnation(node.incarnation.value());
    send.set_receiver_address(node.transfer_address);
    send.set_receiver_host(node.host);
    actions_.commands.emplace_back(from->key, std::move(command));
  }
  const bool waits = wanted.fetch() || !wanted.hashes().empty();
  if (found || !waits) return;
  // A prompt, or a loan that moves, waits for this fetch; or room is held for a node that drained.
  v1::NodeCommand command;
  command.mutable_send_blocks()->set_lease_id(wanted.lease_id());
  command.mutable_send_blocks()->set_fetch(wanted.fetch());
  actions_.commands.emplace_back(node.key, std::move(command));
}

}  // namespace tandem::router
