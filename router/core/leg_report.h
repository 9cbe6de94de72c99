// Bounds what a node says of one leg, where it enters the core: the router computes with these
// figures, keeps them for traces, and shows them to clients. A wrong node can then say what is not
// so, and nothing that overflows, is not a number, or takes memory.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// Tokens and blocks: sums of a few fit into 64 bits.
inline constexpr int64_t kReportedCountMax = std::numeric_limits<int32_t>::max();
// A petabyte: no prompt has so much KV.
inline constexpr int64_t kReportedBytesMax = int64_t{1} << 50;
inline constexpr absl::Duration kReportedTimeMax = absl::Hours(24);

// The event as the node sent it, but for Reserved, PrefillFinished, Installed and LegFinished:
// there figures that cannot be are replaced by the nearest that can, times that are not finite by
// 0, a share likewise; a transport's name of more than kTransportNameMax bytes is left out; of
// creditors Fleet::kDebtsMax are kept, and of their names kNodeIdBytesMax bytes.
v1::NodeEvent BoundedLegReport(const v1::NodeEvent& event);

}  // namespace tandem::router
