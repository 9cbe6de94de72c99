#include "sim/trace/cache_policies.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"

namespace tandem::sim {
namespace {

enum class Policy { kLru, kLfu, kFifo, kCostAware };

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
double CostOf(const cost::StepProfile& cost, int64_t ordinal) {
  cost::StepShape shape;
  shape.Add(ordinal * kTraceBlockTokens, kTraceBlockTokens, /*sample=*/false);
  return cost.Predict(shape).us - cost.step_us;
}

int64_t Replay(Cache& cache, const TraceRequest& request, const std::vector<double>& costs) {
  const auto named = static_cast<int64_t>(request.blocks.size());
  const int64_t usable = std::min(named, (request.prompt_tokens - 1) / kTraceBlockTokens);
  int64_t hit = 0;
  while (hit < usable && cache.Holds(request.blocks[hit])) ++hit;
  // The last ones first, so that a prompt's beginning stays longest.
  for (int64_t i = std::min(named, request.prompt_tokens / kTraceBlockTokens) - 1; i >= 0; --i)
    cache.Use(request.blocks[i], costs[i]);
  return hit * kTraceBlockTokens;
}

}  // namespace

absl::StatusOr<std::vector<PolicyHits>> CompareCachePolicies(WorkloadSource& source, int64_t blocks,
                                                             const cost::StepProfile& cost) {
  std::vector<Cache> caches;
  std::vector<PolicyHits> hits;
  for (const auto& [policy, name] : {std::pair(Policy::kLru, "LRU"),
                                     {Policy::kLfu, "LFU"},
                                     {Policy::kFifo, "FIFO"},
                                     {Policy::kCostAware, "cost-aware"}}) {
    caches.emplace_back(policy, blocks);
    hits.push_back({.policy = name});
  }
  std::vector<double> costs;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TraceRequest> request, source.Next());
    if (!request.has_value()) return hits;
    while (costs.size() < request->blocks.size())
      costs.push_back(CostOf(cost, static_cast<int64_t>(costs.size())));
    for (size_t i = 0; i < caches.size(); ++i)
      hits[i].hit_tokens += Replay(caches[i], *request, costs);
  }
}

}  // namespace tandem::sim
