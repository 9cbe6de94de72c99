// How the fleet numbers its joined nodes, and the groups that placement looks for nodes in.
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::router {

// A joined node's number in the fleet and in the prefix index: small, dense, used again after the
// node has left.
using NodeSlot = uint16_t;

// The nodes that take legs of one kind. A node that drains takes none.
enum NodeGroup : uint8_t { kPrefillNodes = 0, kDecodeNodes = 1, kNoGroup = 2 };
inline constexpr size_t kNodeGroups = 2;

}  // namespace tandem::router
