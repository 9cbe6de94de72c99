#include "router/fleet/tenant_blocks.h"

#include <algorithm>

namespace tandem::router {

void TenantBlocks::Change(Held& sums, const std::string& tenant, int64_t blocks) {
  if (blocks == 0) return;
  const auto sum = sums.try_emplace(tenant, 0).first;
  sum->second += blocks;
  if (sum->second == 0) sums.erase(sum);
}

void TenantBlocks::OnReport(NodeKey node, const v1::NodeMessage& message) {
  if (!message.has_tenant_blocks()) return;
  OnNodeLost(node);
  Held held;
  for (const v1::TenantBlocks& blocks : message.tenant_blocks()) {
    if (std::ssize(held) >= kReportedMax) break;
    const int64_t used = std::min(blocks.used(), kBlocksMax);
    if (used <= 0 || blocks.tenant().size() > kTenantNameBytesMax) continue;
    if (held.emplace(blocks.tenant(), used).second) Change(reported_sum_, blocks.tenant(), used);
  }
  if (!held.empty()) reported_.emplace(node, std::move(held));
}

void TenantBlocks::OnNodeLost(NodeKey node) {
  const auto held = reported_.find(node);
  if (held == reported_.end()) return;
  for (const auto& [tenant, blocks] : held->second) Change(reported_sum_, tenant, -blocks);
  reported_.erase(held);
}

void TenantBlocks::Add(const std::string& tenant, int64_t blocks) { Change(own_, tenant, blocks); }

int64_t TenantBlocks::Used(const std::string& tenant) const {
  const auto in = [&tenant](const Held& sums) {
    const auto sum = sums.find(tenant);
    return sum == sums.end() ? 0 : sum->second;
  };
  return std::max(in(reported_sum_), in(own_));
}

}  // namespace tandem::router
