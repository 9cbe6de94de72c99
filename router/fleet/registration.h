// Whether a node may join this router's fleet: its registration is well formed and it serves the
// same model. (Equality with the other nodes is the fleet's business.)
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/block_hash.h"
#include "router/core/router_core.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

inline constexpr size_t kNodeIdBytesMax = 128;

// kInvalidArgument names the field at fault, its value and what was expected; kFailedPrecondition
// names both models when they differ.
absl::Status CheckRegistration(const v1::Registration& registration, const ModelIdentity& model);

// "prefill" or "decode".
const char* RoleName(v1::NodeRole role);

}  // namespace tandem::router
