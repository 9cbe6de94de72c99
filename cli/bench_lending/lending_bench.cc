#include "cli/bench_lending/lending_bench.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench_lending/mixed_workload.h"
#include "cli/bench_lending/skewed_load.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// The answer of a request that only asks whether a prompt fits.
constexpr int32_t kProbeTokens = 4;
// For 10 s after a node joined, a router lets a prompt wait that does not fit, instead of refusing
// it.
constexpr absl::Duration kSettleTime = absl::Seconds(12);

constexpr absl::Duration kStatusTimeout = absl::Seconds(1);

void IgnoreProgress(const LoadProgress&) {}

std::unique_ptr<Workload> OneLength(int64_t prompt, int32_t answer, uint64_t seed) {
  const auto length = static_cast<int32_t>(prompt);
  return NewSyntheticWorkload(
      {.prompt_tokens = {length, length}, .output_tokens = {answer, answer}, .seed = seed});
}

// One request of these lengths, alone.
absl::StatusOr<RequestRecord> AskOne(
    MeasuredCluster& cluster, int64_t prompt, int32_t answer, uint64_t seed,
    const std::function<void(const LoadProgress&)>& on_progress = IgnoreProgress) {
  const std::unique_ptr<Workload> workload = OneLength(prompt, answer, seed);
  ASSIGN_OR_RETURN(
      const LoadResult result,
      cluster.Run({.requests = 1, .concurrency = 1, .seed = seed}, *workload, on_progress));
  if (result.records.empty()) return absl::UnavailableError("no request was sent");
  return result.records.front();
}

absl::Status FailureOf(const RequestRecord& record, absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat(what, " was not answered: ", record.error, ": ", record.message));
}

}  // namespace

absl::StatusOr<std::vector<double>> TokenGapsOf(Client& router, const LoadRequest& load,
                                                const std::function<bool()>& should_stop) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(load.tokens.begin(), load.tokens.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(load.seed);
  request.mutable_stop()->set_max_tokens(load.max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  request.set_return_gaps(true);
  std::vector<double> gaps;
  bool stopped = false;
  RETURN_IF_ERROR(router.Generate(request, [&](const v1::GenerateResponse& part) {
    const auto& told = part.finished().timing().gap_ms();
    gaps.insert(gaps.end(), told.begin(), told.end());
    stopped = should_stop();
    return !stopped;
  }));
  if (stopped) return absl::CancelledError("interrupted");
  // Before a token that came with the one before it the router counted no gap.
  for (size_t first = 0, end = 0; first < gaps.size(); first = end) {
    for (end = first + 1; end < gaps.size() && gaps[end] == 0;) ++end;
    const double shared = gaps[first] / static_cast<double>(end - first);
    std::fill(gaps.begin() + static_cast<std::ptrdiff_t>(first),
              gaps.begin() + static_cast<std::ptrdiff_t>(end), shared);
  }
  return gaps;
}

KvPlace KvPlaceOf(const v1::GetStatusResponse& status, int64_t block_tokens) {
  int64_t here = 0, lent = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    here += node.load().blocks_used() - node.load().blocks_lent();
    for (const v1::Debt& debt : node.load().debts()) lent += debt.blocks();
  }
  return {.here_tokens = here * block_tokens, .lent_tokens = lent * block_tokens};
}

absl::StatusOr<std::unique_ptr<MeasuredCluster>> LendingBench::Start(int32_t nodes, int64_t blocks,
                                                                     bool lend,
                                                                     int64_t creditor_blocks) {
  UpConfig up = options_.up;
  up.grpc = {"127.0.0.1:0"};
  up.http.clear();
  up.prefill = creditor_blocks > 0 ? 1 : 0;
  up.prefill_kv_blocks = creditor_blocks;
  up.decode = nodes;
  up.node.kv.blocks = blocks;
  if (!lend) up.node.kv.lend_fraction = 0;
  return MeasuredCluster::Start(up, env_, should_stop_);
}

absl::StatusOr<LongestContext> LendingBench::Longest(int32_t nodes) {
  announce_(absl::StrCat("the longest prompt of ", nodes, nodes == 1 ? " node" : " nodes"));
  ASSIGN_OR_RETURN(const auto cluster,
                   Start(nodes, options_.up.node.kv.blocks, /*lend=*/nodes > 1));
  if (nodes > 1 && should_stop_(kSettleTime)) return absl::CancelledError("interrupted");
  const int64_t pool = options_.pool_tokens();
  // Answered at `fits`, refused at `too_long`.
  int64_t fits = 0, too_long = pool * nodes + 1;
  uint64_t seed = options_.seed;
  while (too_long - fits > pool / 8) {
    const int64_t prompt = (fits + too_long) / 2;
    // A prompt of its own each time: nothing of it is cached.
    ASSIGN_OR_RETURN(const RequestRecord record, AskOne(*cluster, prompt, kProbeTokens, ++seed));
    (record.ok() ? fits : too_long) = prompt;
  }
  cluster->Drain();
  if (fits > 0) return LongestContext{nodes, fits};
  return absl::UnavailableError(absl::StrCat("a cluster of ", nodes, " nodes with pools of ", pool,
                                             " tokens answered no prompt"));
}

absl::StatusOr<std::vector<LongestContext>> LendingBench::Contexts() {
  std::vector<LongestContext> contexts;
  for (int32_t nodes = 1;; nodes = std::min(2 * nodes, options_.up.decode)) {
    ASSIGN_OR_RETURN(contexts.emplace_back(), Longest(nodes));
    if (nodes == options_.up.decode) return contexts;
  }
}

absl::StatusOr<LendingSlowdown> LendingBench::Slowdown() {
  const auto context =
      static_cast<int64_t>(options_.context_pools * static_cast<double>(options_.pool_tokens()));
  const int64_t prompt = context - options_.slowdown_tokens;
  announce_(absl::StrCat("the gaps of an answer that ends at ", context, " tokens of context"));
  const int64_t blocks = options_.up.node.kv.blocks;
  // One node of twice the memory, or of as many times as the context needs, and a little more.
  const auto large =
      static_cast<int64_t>((options_.context_pools + 0.25) * static_cast<double>(blocks));
  ASSIGN_OR_RETURN(const auto local, Start(1, large, /*lend=*/false));
  // The only creditor is a prefill node: the router places no answer there, however much room it
  // has.
  const int32_t nodes = options_.creditor_blocks > 0 ? 1 : options_.up.decode;
  ASSIGN_OR_RETURN(const auto lending,
                   Start(nodes, blocks, /*lend=*/true, options_.creditor_blocks));
  std::vector<double> gaps[2];
  for (int64_t round = 0; round < options_.rounds; ++round) {
    for (const bool lent : {round % 2 != 0, round % 2 == 0}) {
      const uint64_t seed = options_.seed + static_cast<uint64_t>(round);
      const auto router = Client::Create((lent ? *lending : *local).grpc_address());
      const auto more =
          TokenGapsOf(*router, OneLength(prompt, options_.slowdown_tokens, seed)->Next(),
                      [this] { return should_stop_(absl::ZeroDuration()); });
      if (absl::IsCancelled(more.status())) return more.status();
      if (!more.ok()) {
        return absl::UnavailableError(absl::StrCat(
            "a context of ", context, " tokens ", lent ? "on nodes that lend" : "on one node",
            " was not answered: ", more.status().ToString()));
      }
      gaps[lent].insert(gaps[lent].end(), more->begin(), more->end());
    }
  }
  ASSIGN_OR_RETURN(std::vector<KvPlace> places, Places(*lending, prompt));
  lending->Drain();
  local->Drain();
  return LendingSlowdown{.context_tokens = context,
                         .local = Describe(std::move(gaps[false])),
                         .lent = Describe(std::move(gaps[true])),
                         .places = std::move(places)};
}

absl::StatusOr<std::vector<KvPlace>> LendingBench::Places(MeasuredCluster& cluster,
                                                          int64_t prompt) {
  const std::unique_ptr<Client> client = Client::Create(cluster.grpc_address());
  std::vector<KvPlace> places;
  const auto look = [&](const LoadProgress&) {
    const auto status = client->GetStatus(kStatusTimeout);
    if (!status.ok()) return;  // a look that is missed leaves a gap in the chart
    const KvPlace place = KvPlaceOf(*status, options_.up.node.kv.block_tokens);
    // The debts of the request before may still be reported, without a block in use. After this
    // one's end there is less than there was.
    const bool grew = place.tokens() > (places.empty() ? 0 : places.back().tokens());
    if (grew && place.here_tokens > 0) places.push_back(place);
  };
  const uint64_t seed = options_.seed + static_cast<uint64_t>(options_.rounds);
  ASSIGN_OR_RETURN(const RequestRecord record,
                   AskOne(cluster, prompt, options_.slowdown_tokens, seed, look));
  if (!record.ok()) return FailureOf(record, "the request whose KV was looked at");
  return places;
}

absl::StatusOr<LoadResult> LendingBench::MixRun(MeasuredCluster& cluster, double long_share,
                                                int64_t round) {
  const auto pool = static_cast<double>(options_.pool_tokens());
  MixedWorkload workload({.short_tokens = {16, std::max(17, static_cast<int32_t>(pool / 8))},
                          .long_tokens = {static_cast<int32_t>(options_.long_pools_min * pool),
                                          static_cast<int32_t>(options_.long_pools_max * pool)},
                          .long_share = long_share,
                          .seed = options_.seed + static_cast<uint64_t>(round)});
  return cluster.Run({.requests = options_.mix_requests, .concurrency = options_.mix_concurrency},
                     workload, IgnoreProgress);
}

absl::StatusOr<std::vector<LendingMix>> LendingBench::Mixes() {
  const int64_t blocks = options_.up.node.kv.blocks;
  ASSIGN_OR_RETURN(const auto alone, Start(options_.up.decode, blocks, /*lend=*/false));
  ASSIGN_OR_RETURN(const auto lending, Start(options_.up.decode, blocks, /*lend=*/true));
  std::vector<LendingMix> mixes;
  for (const double share : options_.long_shares) {
    announce_(absl::StrCat("a load of which ", 100 * share, " % are long"));
    std::vector<RequestRecord> records[2];
    absl::Duration elapsed[2];
    for (int64_t round = 0; round < options_.rounds; ++round) {
      for (const bool lend : {round % 2 != 0, round % 2 == 0}) {
        ASSIGN_OR_RETURN(LoadResult result, MixRun(lend ? *lending : *alone, share, round));
        elapsed[lend] += result.elapsed;
        std::move(result.records.begin(), result.records.end(), std::back_inserter(records[lend]));
      }
    }
    mixes.push_back({.long_share = share,
                     .alone = Summarize(records[false], elapsed[false], {}),
                     .lending = Summarize(records[true], elapsed[true], {})});
  }
  lending->Drain();
  alone->Drain();
  return mixes;
}

absl::StatusOr<std::vector<LendingSkew>> LendingBench::Skews() {
  const int64_t blocks = options_.up.node.kv.blocks;
  ASSIGN_OR_RETURN(const auto alone, Start(options_.up.decode, blocks, /*lend=*/false));
  ASSIGN_OR_RETURN(const auto lending, Start(options_.up.decode, blocks, /*lend=*/true));
  std::vector<LendingSkew> skews;
  for (int64_t long_ones = 1; long_ones < options_.up.decode; ++long_ones) {
    LendingSkew skew{.long_ones = long_ones,
                     .short_ones = options_.skew_requests * (options_.up.decode - long_ones)};
    announce_(absl::StrCat("a load of ", long_ones, " long and ", skew.short_ones, " short ones"));
    std::vector<double> rates[2];
    for (int64_t round = 0; round < options_.rounds; ++round) {
      for (const bool lend : {round % 2 != 0, round % 2 == 0}) {
        SkewedLoad load({.long_ones = long_ones,
                         .short_ones = skew.short_ones,
                         .pool_tokens = options_.pool_tokens(),
                         .seed = options_.seed + static_cast<uint64_t>(round * 64 + long_ones)});
        ASSIGN_OR_RETURN(const LoadResult result,
                         (lend ? *lending : *alone)
                             .Run({.requests = long_ones + skew.short_ones,
                                   .next_gap = [&load] { return load.NextGap(); },
                                   .concurrency = 0},
                                  load, IgnoreProgress));
        rates[lend].push_back(SkewedTokensPerSecond(result.records, long_ones));
        (lend ? skew.lending_failed : skew.alone_failed) +=
            std::count_if(result.records.begin(), result.records.end(),
                          [](const RequestRecord& record) { return !record.ok(); });
      }
    }
    skew.alone = Describe(std::move(rates[false])).p50;
    skew.lending = Describe(std::move(rates[true])).p50;
    skews.push_back(skew);
  }
  lending->Drain();
  alone->Drain();
  return skews;
}

}  // namespace tandem::cli
