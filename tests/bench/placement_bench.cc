// Measures what the router's prefix index costs and how long a placement takes:
//   index      bytes of resident memory an entry, store and remove events a second
//   decision   p50 and p99 of PairPlacement::Place, in microseconds, by the number of nodes and by
//              policy; nodes have reported what steps cost, and some links what transfers cost
//   keep       of PairPlacement::NodeToKeep, the 1st node and the 16th of a walk, and of a report
//   of
//              a node's load, which keeps the orders of nodes up to date
// Prompts have 4,000 tokens in 125 blocks of 32. The first 16 blocks are a system prompt that every
// node holds; each chain lies on one prefill node and one decode node.
//   ninja bench_placement && tests/bench_placement [ENTRIES_IN_MILLIONS]
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/runtime/random.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {
namespace {

constexpr int kBlockTokens = 32, kBlocks = 125, kSystemBlocks = 16;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The names of the blocks of chain `number`; names are as good as random, so none is computed.
std::vector<kv::BlockHash> Chain(uint64_t number, int system_blocks) {
  std::vector<kv::BlockHash> chain;
  for (int i = 0; i < kBlocks; ++i) {
    const uint64_t at = i < system_blocks ? i : (number + 1) * 1000 + i;
    chain.push_back({Mix(2 * at), Mix(2 * at + 1)});
  }
  return chain;
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

v1::Registration RegistrationOf(int number, int64_t blocks) {
  v1::Registration registration;
  registration.set_node_id(absl::StrCat("node-", number));
  registration.set_incarnation(1);
  registration.set_role(number % 2 == 0 ? v1::NODE_ROLE_PREFILL : v1::NODE_ROLE_DECODE);
  registration.set_model_name("bench");
  registration.set_model_fingerprint("f");
  registration.set_numerics_id("n");
  registration.set_context_tokens(8192);
  registration.set_vocab_size(1000);
  registration.set_block_tokens(kBlockTokens);
  registration.set_num_blocks(blocks);
  registration.set_transfer_address("x");
  registration.set_host(absl::StrCat("host-", number));
  registration.set_max_sequences(256);
  registration.set_kv_bytes_per_block(kBlockTokens * 100'000);
  return registration;
}

class Bench {
 public:
  Bench(int nodes, int64_t entries)
      : fleet_(Model(), {.nodes_max = 4096}, *random_),
        index_({.entries_max = entries * 2, .seed = 1}) {
    const int64_t pool = 4 * entries / nodes + 4096;
    for (int n = 0; n < nodes; ++n) {
      Node& node = fleet_.Join(NodeKey(n + 1), RegistrationOf(n, pool), absl::UnixEpoch());
      index_.AddNode(node.slot, node.group(), pool);
      slots_.push_back(node.slot);
      v1::NodeLoad load;
      load.set_blocks_total(pool);
      load.set_blocks_free(pool / 2 + static_cast<int64_t>(random_->Below(pool / 2)));
      load.set_sequences_running(static_cast<int64_t>(random_->Below(200)));
      load.set_prefill_tokens_waiting(static_cast<int64_t>(random_->Below(8000)));
      fleet_.OnLoad(node, load);
      fleet_.OnStepCost(node, {.step_us = 9000,
                               .prompt_row_us = 100 + static_cast<double>(random_->Below(20)),
                               .prompt_attended_us = 0.002,
                               .generated_row_us = 50,
                               .generated_attended_us = 0.02,
                               .sampled_row_us = 10,
                               .relative_error = 0.03,
                               .median_relative_error = 0.02});
      if (n % 2 == 1) MeasureLinks(node);
    }
    Fill(entries);
  }

  void ReportIndex() {
    std::printf("index  nodes %5zu  entries %9lld  bytes/entry %6.1f  stores/s %.2f M",
                slots_.size(), static_cast<long long>(index_.entries()),
                static_cast<double>(bytes_) / static_cast<double>(index_.entries()),
                static_cast<double>(index_.entries()) / store_s_ / 1e6);
    // Every 16th chain goes and comes back.
    int64_t events = 0;
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t c = 0; c < chains_; c += 16) {
      const auto chain = Chain(c, kSystemBlocks);
      const auto tail = absl::MakeConstSpan(chain).subspan(kSystemBlocks);
      index_.Remove(PrefillOf(c), tail);
      index_.Store(PrefillOf(c), tail);
      events += 2 * static_cast<int64_t>(tail.size());
    }
    std::printf("  removes+stores/s %.2f M\n", static_cast<double>(events) / Seconds(began) / 1e6);
  }

  // `what` of: a chain that is held whole, one that is new after the system prompt, and one that
  // every node holds whole.
  void ReportDecision(const char* what, PlacementPolicy policy) {
    const bool fresh = std::string(what) == "new tail", hot = std::string(what) == "on all nodes";
    const auto everywhere = Chain(~uint64_t{0} / 2000, kSystemBlocks);
    if (hot)
      for (const NodeSlot slot : slots_) index_.Store(slot, everywhere);
    PairPlacement placement(
        {.local_prefill_tokens_max = 32, .fetch_tokens_min = 64, .policy = policy}, fleet_, index_,
        *random_);
    std::vector<double> us;
    int64_t cached = 0;
    for (int i = 0; i < 5000; ++i) {
      const auto chain =
          hot ? everywhere : Chain(random_->Below(chains_) + (fresh ? chains_ : 0), kSystemBlocks);
      PlacementRequest request;
      request.prompt_tokens = 4000;
      request.tokens_total = 4500;
      request.hashes = chain;
      request.now = absl::UnixEpoch();
      Placement placed;
      const auto began = std::chrono::steady_clock::now();
      if (placement.Place(request, placed).has_value()) std::abort();
      us.push_back(Seconds(began) * 1e6);
      cached += placed.prefill_cached_tokens;
    }
    std::sort(us.begin(), us.end());
    std::printf(
        "decision  nodes %5zu  %-8s  %-12s  p50 %7.1f us  p99 %7.1f us  cached tokens %lld\n",
        slots_.size(), std::string(NameOf(policy)).c_str(), what, us[us.size() / 2],
        us[us.size() * 99 / 100], static_cast<long long>(cached / static_cast<int64_t>(us.size())));
  }

  void ReportKeep() {
    PairPlacement placement({}, fleet_, index_, *random_);
    std::vector<NodeKey> kept;
    PlacementRequest request;
    request.tokens_total = 4500;
    request.now = absl::UnixEpoch();
    request.kept = &kept;
    std::vector<double> first, last;
    for (int i = 0; i < 5000; ++i) {
      kept.clear();
      for (int k = 0; k < 16; ++k) {
        const auto began = std::chrono::steady_clock::now();
        const auto node = placement.NodeToKeep(request);
        if (k == 0 || k == 15) (k == 0 ? first : last).push_back(Seconds(began) * 1e6);
        if (node.has_value()) kept.push_back(*node);
      }
    }
    std::sort(first.begin(), first.end());
    std::sort(last.begin(), last.end());
    constexpr int kReports = 1'000'000;
    v1::NodeLoad load;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < kReports; ++i) {
      load.set_blocks_free(static_cast<int64_t>(random_->Below(4096)));
      fleet_.OnLoad(*fleet_.Find(NodeKey(1 + random_->Below(slots_.size()))), load);
    }
    std::printf(
        "keep      nodes %5zu  1st p50 %7.2f us  p99 %7.2f us  16th p50 %7.2f us  p99 %7.2f us"
        "  report %5.2f us\n",
        slots_.size(), first[first.size() / 2], first[first.size() * 99 / 100],
        last[last.size() / 2], last[last.size() * 99 / 100], Seconds(began) * 1e6 / kReports);
  }

 private:
  static ModelIdentity Model() {
    ModelIdentity model;
    model.name = "bench";
    model.fingerprint = "f";
    model.vocab_size = 1000;
    model.context_tokens = 8192;
    return model;
  }
  // Transfers from the last few prefill nodes that joined.
  void MeasureLinks(const Node& to) {
    for (size_t i = 0; i < 8 && 2 * i < slots_.size(); ++i) {
      const Node* from = fleet_.At(slots_[slots_.size() - 1 - 2 * i - slots_.size() % 2]);
      v1::Installed installed;
      for (const int64_t bytes : {1'000'000, 8'000'000, 2'000'000}) {
        installed.set_kv_bytes_received(bytes);
        installed.set_kv_receive_ms(static_cast<double>(bytes) / 1e7);
        fleet_.KvTransferDone(from->key, to.key, installed);
      }
    }
  }
  NodeSlot PrefillOf(uint64_t chain) const { return slots_[Mix(chain) % (slots_.size() / 2) * 2]; }
  NodeSlot DecodeOf(uint64_t chain) const {
    return slots_[Mix(~chain) % (slots_.size() / 2) * 2 + 1];
  }

  void Fill(int64_t entries) {
    const int64_t before = ResidentBytes();
    const auto began = std::chrono::steady_clock::now();
    const auto system = Chain(0, kSystemBlocks);
    for (const NodeSlot slot : slots_)
      index_.Store(slot, absl::MakeConstSpan(system).first(kSystemBlocks));
    for (; index_.entries() < entries; ++chains_) {
      const auto chain = Chain(chains_, kSystemBlocks);
      index_.Store(PrefillOf(chains_), chain);
      index_.Store(DecodeOf(chains_), chain);
    }
    store_s_ = Seconds(began);
    bytes_ = ResidentBytes() - before;
  }

  std::unique_ptr<Random> random_ = NewSeededRandom(7);
  Fleet fleet_;
  PrefixIndex index_;
  std::vector<NodeSlot> slots_;
  uint64_t chains_ = 0;
  double store_s_ = 0;
  int64_t bytes_ = 0;
};

void Run(int nodes, int64_t entries) {
  Bench bench(nodes, entries);
  bench.ReportIndex();
  for (const char* what : {"held", "new tail", "on all nodes"})
    for (const auto policy : {PlacementPolicy::kCost, PlacementPolicy::kAffinity})
      bench.ReportDecision(what, policy);
  bench.ReportKeep();
}

}  // namespace
}  // namespace tandem::router

int main(int argc, char** argv) {
  const double millions = argc > 1 ? std::atof(argv[1]) : 4;
  const int only = argc > 2 ? std::atoi(argv[2]) : 0;
  for (const int nodes : {10, 100, 1000, 4096})
    if (only == 0 || only == nodes)
      tandem::router::Run(nodes, static_cast<int64_t>(millions * 1e6));
  return 0;
}
