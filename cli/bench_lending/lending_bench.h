// Measures what lending KV memory is worth, with clusters of real processes: how long a sequence
// may get, what it costs a sequence to have half of its KV elsewhere, and what a cluster answers
// when some requests are long.
// Thread safety: the calling thread only. Owner: the bench lending command.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench_serve/arrivals.h"
#include "cli/bench_serve/workload.h"
#include "cli/client/client.h"
#include "cli/cluster_load/measured_cluster.h"
#include "cli/report/statistics.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct LendingBenchOptions {
  // The nodes that lend: up.decode of them, with up.node.kv.blocks blocks each, that prefill too.
  UpConfig up;
  int64_t rounds = 3;  // alternated, of what is compared
  uint64_t seed = 1;
  // Slowdown: the answer of one request, whose context ends at `context_pools` pools.
  double context_pools = 2;
  int32_t slowdown_tokens = 128;
  // Slowdown: not 0: one node lends to another, from a pool of so many blocks.
  int64_t creditor_blocks = 0;
  // Mix: requests of each run, and the shares of long ones. A short one takes up to an eighth of a
  // pool; a long one from long_pools_min to long_pools_max pools, prompt and answer together.
  int64_t mix_requests = 60;
  int64_t mix_concurrency = 8;
  std::vector<double> long_shares = {0.02, 0.1, 0.3};
  double long_pools_min = 0.5, long_pools_max = 0.9;
  // Skew: short requests for each node that has no long one (skewed_load.h).
  int64_t skew_requests = 112;

  // Tokens that the pool of one node holds.
  int64_t pool_tokens() const { return up.node.kv.blocks * up.node.kv.block_tokens; }
};

// The longest prompt that a cluster of `nodes` answered, within an eighth of a pool.
struct LongestContext {
  int32_t nodes = 0;
  int64_t tokens = 0;
};
// Where the KV of a cluster's only sequence lay at one moment: with the node that computes it, and
// with its creditors.
struct KvPlace {
  int64_t here_tokens = 0, lent_tokens = 0;
  int64_t tokens() const { return here_tokens + lent_tokens; }
};
// Of a cluster that serves one sequence.
KvPlace KvPlaceOf(const v1::GetStatusResponse& status, int64_t block_tokens);

// Sends a request, and returns the gaps between its answer's tokens in milliseconds: one for each
// token but the first, taken where tokens reach the router. Tokens that came together share the gap
// before them evenly, so the mean is the answer's time for each token after the first. A client
// sees fewer parts than tokens, where the bytes of several tokens make one character.
// `should_stop`: asked at each part of the answer; kCancelled then. Errors: as Client::Generate.
absl::StatusOr<std::vector<double>> TokenGapsOf(Client& router, const LoadRequest& load,
                                                const std::function<bool()>& should_stop);

// Gaps between the tokens of one answer (TokenGapsOf): with all of its KV on one node that is large
// enough, and with a part of it lent.
struct LendingSlowdown {
  int64_t context_tokens = 0;
  Distribution local, lent;
  // Of one more request on the nodes that lend, from its prompt to its end. Bound: ten a second.
  std::vector<KvPlace> places;
};
// One load, on nodes that do not lend and on nodes that do.
struct LendingMix {
  double long_share = 0;
  LoadSummary alone, lending;
};

// One load (skewed_load.h), on nodes that do not lend and on nodes that do. Tokens a second are the
// median of the rounds.
struct LendingSkew {
  int64_t long_ones = 0, short_ones = 0;         // of a round
  double alone = 0, lending = 0;                 // tokens a second
  int64_t alone_failed = 0, lending_failed = 0;  // requests of all rounds
};

class LendingBench {
 public:
  using Announce = std::function<void(const std::string&)>;

  LendingBench(const LendingBenchOptions& options, std::map<std::string, std::string> env,
               MeasuredCluster::ShouldStop should_stop, Announce announce)
      : options_(options),
        env_(std::move(env)),
        should_stop_(std::move(should_stop)),
        announce_(std::move(announce)) {}

  // Each starts its clusters, and stops them. Errors: as MeasuredCluster; kUnavailable when a
  // request failed that the measurement needs.

  // Of 1, 2, 4 and so on nodes, and of up.decode.
  absl::StatusOr<std::vector<LongestContext>> Contexts();
  absl::StatusOr<LendingSlowdown> Slowdown();
  absl::StatusOr<std::vector<LendingMix>> Mixes();
  // With one long request, two, and so on to one less than nodes.
  absl::StatusOr<std::vector<LendingSkew>> Skews();

 private:
  // `nodes` decode nodes with `blocks` blocks each; they lend, or not. `creditor_blocks`: not 0: a
  // prefill node of so many blocks beside them, which lends.
  absl::StatusOr<std::unique_ptr<MeasuredCluster>> Start(int32_t nodes, int64_t blocks, bool lend,
                                                         int64_t creditor_blocks = 0);
  absl::StatusOr<LongestContext> Longest(int32_t nodes);
  // Sends one request, and looks every 100 ms at where its KV lies.
  absl::StatusOr<std::vector<KvPlace>> Places(MeasuredCluster& cluster, int64_t prompt);
  absl::StatusOr<LoadResult> MixRun(MeasuredCluster& cluster, double long_share, int64_t round);

  const LendingBenchOptions options_;
  const std::map<std::string, std::string> env_;
  const MeasuredCluster::ShouldStop should_stop_;
  const Announce announce_;
};

}  // namespace tandem::cli
