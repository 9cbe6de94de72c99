// Moves the prefix blocks of a draining node to a successor, so that later prompts still find them.
// The draining node offers its blocks; the migration has the successor adopt those that no other
// node holds; the successor asks for them; the migration has the draining node send them
// (docs/adr/0021-a-draining-node-is-a-sender.md).
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: no state of its own. The messages name both ends.
#pragma once

#include "absl/status/status.h"
#include "router/core/router_actions.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class PrefixMigration {
 public:
  // The longest that a peer is asked to hold room for offered blocks, whatever the offer says.
  static constexpr double kOfferSecondsMax = 30;

  // All outlive the migration.
  PrefixMigration(const Fleet& fleet, const PrefixIndex& index, RouterActions& actions)
      : fleet_(fleet), index_(index), actions_(actions) {}

  // `node` offers blocks. One that does not drain is told that no node takes any. kInvalidArgument
  // for malformed hashes.
  absl::Status OnBlocksOffered(const Node& node, const v1::BlocksOffered& offered);
  // The successor `node` has room and asks for blocks, or a prefill node fetches some for a prompt.
  // Is told if the sender has left.
  void OnBlocksWanted(const Node& node, const v1::BlocksWanted& wanted);

 private:
  // Another node of the same role that does not drain, with the most free blocks; nullptr if there
  // is none.
  const Node* SuccessorOf(const Node& node) const;

  const Fleet& fleet_;
  const PrefixIndex& index_;
  RouterActions& actions_;
};

}  // namespace tandem::router
