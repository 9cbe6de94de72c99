// Checks whether a node may join: its registration is well formed, and it serves the router's
// model. (Fleet::CheckJoin compares it with the nodes that have joined.) Thread safety: pure
// functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/node_id.h"
#include "common/kv/block_hash.h"
#include "router/fleet/model_identity.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// kInvalidArgument, naming the bad field, its value and what was expected; kFailedPrecondition,
// naming both models, when they differ.
absl::Status CheckRegistration(const v1::Registration& registration, const ModelIdentity& model);
// kFailedPrecondition, naming both ways, when the node does not name blocks as this router does:
// its hashes would find nothing here, or what they do not mean.
absl::Status CheckBlockNames(const v1::Registration& registration, const kv::BlockKey& key);

// "prefill" or "decode".
const char* RoleName(v1::NodeRole role);

}  // namespace tandem::router
