// The KV blocks that tenants' sequences hold on a fleet's decode nodes, as far as a router knows.
// Nodes report what their pools hold, for all routers' sequences, about once a second; what this
// router has placed since is known at once. The larger figure counts.
//
// Thread safety: none; RequestTable owns it, on the core's strand.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "router/fleet/node_key.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class TenantBlocks {
 public:
  // Tenants of one node's report; others are not looked at.
  static constexpr int kReportedMax = 4096;
  // Of one report: a pool's blocks are counted in 32 bits, and a larger figure counts as this.
  static constexpr int64_t kBlocksMax = std::numeric_limits<int32_t>::max();
  // Longer names are no tenant's: api_keys.h refuses them.
  static constexpr size_t kTenantNameBytesMax = 64;

  // A decode node's report, which replaces its last one.
  void OnReport(NodeKey node, const v1::NodeMessage& message);
  void OnNodeLost(NodeKey node);
  // This router's sequences hold `blocks` more, or, negative, fewer.
  void Add(const std::string& tenant, int64_t blocks);
  int64_t Used(const std::string& tenant) const;

 private:
  // By tenant. Bound: kReportedMax (4,096).
  using Held = absl::flat_hash_map<std::string, int64_t>;
  void Change(Held& sums, const std::string& tenant, int64_t blocks);

  // Bound: one for each joined decode node.
  absl::flat_hash_map<NodeKey, Held> reported_;
  // By tenant. Bound: kReportedMax (4,096) for each node.
  Held reported_sum_;
  // By tenant. Bound: --requests-max, because each has a sequence.
  Held own_;
};

}  // namespace tandem::router
