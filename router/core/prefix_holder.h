// A node that holds a prompt's beginning, and from which the node that computes the prompt is to
// fetch it. Thread safety: a value.
#pragma once

#include <cstdint>

#include "router/fleet/fleet.h"

namespace tandem::router {

struct PrefixHolder {
  NodeKey node;
  int32_t blocks = 0;  // the prompt's first ones that it is asked for
};

// Fills the fields of `command` (Prefill or StartDecode) that name the holder, if it is there.
template <typename Command>
void NameHolder(const PrefixHolder& holder, const Fleet& fleet, Command& command) {
  const Node* from = fleet.Find(holder.node);
  if (from == nullptr) return;
  command.set_fetch_from_node_id(from->id.value());
  command.set_fetch_from_incarnation(from->incarnation.value());
  command.set_fetch_blocks(holder.blocks);
}

// What `answer` (PrefillFinished or Reserved) of the node says of a fetch that it tried.
template <typename Answer>
void NoteFetch(const PrefixHolder& holder, NodeKey node, const Answer& answer, Fleet& fleet) {
  if (answer.has_fetched()) {
    fleet.KvTransferDone(holder.node, node, answer.fetched());
  } else {
    fleet.FetchFailed(holder.node, node);
  }
}

}  // namespace tandem::router
