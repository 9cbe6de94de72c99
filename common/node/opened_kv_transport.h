// How a node's KV payloads travel: from the host's arena or from the engine's device memory
// (docs/adr/0026-payloads-leave-from-device-slots.md), and through which transport.
// Thread safety: a function; the thread that starts the node.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/node/node_config.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/kv_transport.h"

namespace tandem::node {

struct OpenedKvTransport {
  std::unique_ptr<transfer::KvTransport> transport;
  bool on_device = false;  // payloads lie in device memory
  std::string why;         // for the log
};

// Chooses by the configuration and by what this host's UCX can do, and tells `engine`. `host` names
// the machine. REQUIRES: the engine's KV is allocated and
// holds nothing yet. Errors: the configuration requires a transport that is not available.
absl::StatusOr<OpenedKvTransport> OpenKvTransport(const NodeConfig& config, const std::string& host,
                                                  const transfer::KvTransferOptions& kv_transfer,
                                                  engine::Engine& engine);

}  // namespace tandem::node
