#include "sim/trace/cache_policies.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"
#include "common/kv/eviction_order.h"

namespace tandem::sim {
namespace {

enum class Policy { kLru, kLfu, kFifo, kCostAware, kPool };

// One cache. Each block has a worth, and the block that is worth least goes.
class Cache {
 public:
  Cache(Policy policy, int64_t blocks) : policy_(policy), blocks_(blocks) {}

  bool Holds(uint64_t name) const { return held_.contains(name); }
  // The block is used, or comes in. `cost`: of computing it, in any unit.
  void Use(uint64_t name, double cost) {
    ++clock_;
    const auto [it, came] = held_.try_emplace(name);
    Block& block = it->second;
    if (!came) order_.erase({block.worth, block.since, name});
    ++block.uses;
    if (came || policy_ != Policy::kFifo) block.since = clock_;
    block.worth = WorthOf(block, cost);
    order_.insert({block.worth, block.since, name});
    if (static_cast<int64_t>(held_.size()) > blocks_) Evict();
  }

 private:
  struct Block {
    double worth = 0;
    int64_t since = 0, uses = 0;
  };
  double WorthOf(const Block& block, double cost) const {
    const auto uses = static_cast<double>(block.uses);
    if (policy_ == Policy::kLfu) return uses;
    if (policy_ == Policy::kPool) {
      const int level = std::bit_width(static_cast<uint64_t>(block.uses)) - 1;
      const int counted = std::min(level, kv::EvictionOrder::kLevels - 1);
      return static_cast<double>(clock_ + counted * blocks_);
    }
    return policy_ == Policy::kCostAware ? age_ + uses * cost : 0;
  }
  void Evict() {
    const auto [worth, since, name] = *order_.begin();
    age_ = worth;
    order_.erase(order_.begin());
    held_.erase(name);
  }

  const Policy policy_;
  const int64_t blocks_;
  // Bound: blocks_ and one, as order_.
  absl::flat_hash_map<uint64_t, Block> held_;
  absl::btree_set<std::tuple<double, int64_t, uint64_t>> order_;  // worth, then time
  double age_ = 0;
  int64_t clock_ = 0;
};

// What the `ordinal`th block of a prompt costs to compute once the ones before it are there.
double CostOf(const cost::StepProfile& cost, int64_t ordinal, int64_t block_tokens) {
  cost::StepShape shape;
  shape.Add(ordinal * block_tokens, block_tokens, /*sample=*/false);
  return cost.Predict(shape).us - cost.step_us;
}

int64_t Replay(Cache& cache, const TraceRequest& request, const std::vector<double>& costs,
               int64_t block_tokens) {
  const auto named = static_cast<int64_t>(request.blocks.size());
  const int64_t usable = std::min(named, (request.prompt_tokens - 1) / block_tokens);
  int64_t hit = 0;
  while (hit < usable && cache.Holds(request.blocks[hit])) ++hit;
  // The last ones first, so that a prompt's beginning stays longest.
  for (int64_t i = std::min(named, request.prompt_tokens / block_tokens) - 1; i >= 0; --i)
    cache.Use(request.blocks[i], costs[i]);
  return hit * block_tokens;
}

}  // namespace

absl::StatusOr<std::vector<PolicyHits>> CompareCachePolicies(WorkloadSource& source, int64_t blocks,
                                                             const cost::StepProfile& cost,
                                                             int64_t block_tokens) {
  std::vector<Cache> caches;
  std::vector<PolicyHits> hits;
  for (const auto& [policy, name] : {std::pair(Policy::kLru, "LRU"),
                                     {Policy::kLfu, "LFU"},
                                     {Policy::kFifo, "FIFO"},
                                     {Policy::kCostAware, "cost-aware"},
                                     {Policy::kPool, "pool"}}) {
    caches.emplace_back(policy, blocks);
    hits.push_back({.policy = name});
  }
  std::vector<double> costs;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TraceRequest> request, source.Next());
    if (!request.has_value()) return hits;
    while (costs.size() < request->blocks.size())
      costs.push_back(CostOf(cost, static_cast<int64_t>(costs.size()), block_tokens));
    for (size_t i = 0; i < caches.size(); ++i)
      hits[i].hit_tokens += Replay(caches[i], *request, costs, block_tokens);
  }
}

}  // namespace tandem::sim
