// Names one stream of one node, so that a message from an older stream cannot pass for one from the
// stream that replaced it. A node that reconnects gets a new key; its node id stays the same.
// FleetService assigns keys.
// Thread safety: a value.
#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace tandem::router {

using NodeKey = StrongId<struct NodeKeyTag, uint64_t>;

}  // namespace tandem::router
