// The receiver that a router's command names. Thread safety: a pure function.
#pragma once

#include "common/transfer/kv_transfer.h"

namespace tandem::node {

// `command`: Prefill or SendBlocks.
template <typename Command>
transfer::PeerAddress ReceiverOf(const Command& command) {
  return {.node = NodeId(command.receiver_node_id()),
          .incarnation = Incarnation(command.receiver_incarnation()),
          .transport_address = command.receiver_address(),
          .host = command.receiver_host()};
}

}  // namespace tandem::node
