#include "sim/checkers/quiescence_checker.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "absl/strings/str_join.h"
#include "common/kv/block_hash.h"

namespace tandem::sim {
namespace {

class Zeroes {
 public:
  Zeroes(RunLog& log, const std::string& name) : log_(log), name_(name) {}
  void Expect(absl::string_view what, int64_t figure) {
    if (figure != 0)
      log_.Violate("quiescence", absl::StrCat(name_, " still has ", what, " = ", figure));
  }

 private:
  RunLog& log_;
  const std::string& name_;
};

}  // namespace

void CheckNodeQuiet(const std::string& name, const node::NodeCore& core,
                    const node::NodeResources& resources,
                    const transfer::TransferCounters& transfer, RunLog& log) {
  Zeroes zeroes(log, name);
  const v1::NodeLoad load = core.load();
  zeroes.Expect("blocks_used", load.blocks_used());
  zeroes.Expect("blocks_quarantined", load.blocks_quarantined());
  zeroes.Expect("leases", load.leases());
  zeroes.Expect("exports", load.exports());
  zeroes.Expect("blocks_lent", load.blocks_lent());
  zeroes.Expect("debts", load.debts_size());
  zeroes.Expect("sequences_running", load.sequences_running());
  zeroes.Expect("sequences_waiting", load.sequences_waiting());
  zeroes.Expect("blocks neither free nor cached",
                load.blocks_total() - load.blocks_free() - load.blocks_cached());
  zeroes.Expect("leases_open", transfer.leases_open);
  zeroes.Expect("exports_open", transfer.exports_open);
  zeroes.Expect("sends_in_flight", transfer.sends_in_flight);
  zeroes.Expect("receives_in_flight", transfer.receives_in_flight);
  if (!core.idle()) log.Violate("quiescence", absl::StrCat(name, " is not idle"));
  const v1::NodeCounters counters = resources.counters();
  const v1::TokensBySource& prompt = counters.prompt_tokens();
  zeroes.Expect(
      "prompt tokens without a source",
      counters.prompt_tokens_total() - prompt.computed() - prompt.received() - prompt.cached());
  zeroes.Expect("prompt tokens brought beyond those that were cached",
                std::max<int64_t>(0, prompt.from_host_memory() + prompt.from_disk() +
                                         prompt.fetched() - prompt.cached()));
}

void CheckRouterQuiet(const std::string& name, const router::RouterCore& core, absl::Time now,
                      RunLog& log) {
  Zeroes zeroes(log, name);
  zeroes.Expect("requests_running", core.request_counts().running);
  zeroes.Expect("requests_queued", core.request_counts().queued);
  zeroes.Expect("sequences_queued", core.sequences_queued());
  zeroes.Expect("deadlines", core.deadlines());
  for (const router::Node* node : core.fleet().nodes()) {
    const std::string& id = node->id.value();
    zeroes.Expect(absl::StrCat("legs on ", id), node->legs);
    zeroes.Expect(absl::StrCat("blocks unconfirmed on ", id), node->blocks_unconfirmed);
    zeroes.Expect(absl::StrCat("blocks unreported on ", id), node->blocks_unreported);
    zeroes.Expect(absl::StrCat("prefill tokens ahead on ", id), node->prefill_tokens_ahead);
  }
  zeroes.Expect("diverged tokens", core.GetStatus(now).router().diverged_tokens());
}

bool CheckFleet(const std::string& name, const router::RouterCore& core,
                const std::map<std::string, const node::NodeResources*>& nodes, RunLog& log) {
  std::set<std::string> joined, wrong;
  for (const router::Node* node : core.fleet().nodes()) joined.insert(node->id.value());
  for (const auto& [id, resources] : nodes)
    if (!joined.contains(id)) wrong.insert(absl::StrCat(id, " lives and has not joined it"));
  for (const std::string& id : joined)
    if (!nodes.contains(id)) wrong.insert(absl::StrCat(id, " is in its fleet and does not live"));
  if (!wrong.empty())
    log.Violate("quiescence", absl::StrCat(name, ": ", absl::StrJoin(wrong, ", ")));
  return wrong.empty();
}

void CheckIndex(const std::string& name, const router::RouterCore& core,
                const std::map<std::string, const node::NodeResources*>& nodes, bool forgets,
                RunLog& log) {
  int64_t held = 0, elsewhere = 0, unknown = 0;
  for (const router::Node* joined : core.fleet().nodes()) {
    const node::NodeResources& node = *nodes.at(joined->id.value());
    const auto count = [&](const std::vector<kv::BlockHash>& hashes, router::Tier tier) {
      held += std::ssize(hashes);
      for (const kv::BlockHash& hash : hashes) {
        const std::optional<router::Tier> said = core.index().TierOn(joined->slot, hash);
        unknown += said.has_value() ? 0 : 1;
        elsewhere += said.value_or(tier) != tier ? 1 : 0;
      }
    };
    count(node.CachedBlocks(), router::Tier::kDevice);
    for (const v1::NodeEvent& event : node.StoredOnlyEvents()) {
      const v1::BlocksStored& stored = event.blocks_stored();
      count(*kv::UnpackHashes(stored.hashes()),
            stored.in_host_memory() ? router::Tier::kHost : router::Tier::kDisk);
    }
  }
  const int64_t known = held - unknown;
  if (known != core.index().entries() || (unknown > 0 && !forgets))
    log.Violate("index", absl::StrCat(name, ": the prefix index has ", core.index().entries(),
                                      " entries, its nodes hold ", held, " blocks, ", known,
                                      " of them in the index"));
  if (elsewhere > 0)
    log.Violate("index", absl::StrCat(name, ": ", elsewhere, " of ", held,
                                      " blocks lie in another tier than the prefix index says"));
}

}  // namespace tandem::sim
