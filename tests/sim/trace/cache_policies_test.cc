// Goal: each policy evicts the block that its definition names; a cache that holds all answers the
// ceiling; no policy answers more than that.
#include "sim/trace/cache_policies.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "sim/trace/trace_summary.h"

namespace tandem::sim {
namespace {

class Requests final : public WorkloadSource {
 public:
  // Prompts of whole blocks and one token, by the names of their blocks.
  explicit Requests(std::vector<std::vector<uint64_t>> prompts) : prompts_(std::move(prompts)) {}
  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (next_ == prompts_.size()) return std::optional<TraceRequest>();
    TraceRequest request{.line = static_cast<int64_t>(next_) + 1, .output_tokens = 1};
    request.blocks = prompts_[next_++];
    request.prompt_tokens = static_cast<int64_t>(request.blocks.size()) * kTraceBlockTokens + 1;
    request.blocks.push_back(1'000'000 + next_);
    return std::optional<TraceRequest>(std::move(request));
  }

 private:
  const std::vector<std::vector<uint64_t>> prompts_;
  size_t next_ = 0;
};

// Hits in blocks, by policy.
std::map<std::string, int64_t> Hits(const std::vector<std::vector<uint64_t>>& prompts,
                                    int64_t blocks) {
  Requests source(prompts);
  const auto hits =
      CompareCachePolicies(source, blocks, {.prompt_row_us = 1, .prompt_attended_us = 0.01});
  std::map<std::string, int64_t> by_policy;
  for (const PolicyHits& each : *hits) by_policy[each.policy] = each.hit_tokens / kTraceBlockTokens;
  return by_policy;
}

using Expected = std::map<std::string, int64_t>;

TEST(CachePolicies, EachEvictsWhatItsDefinitionNames) {
  // 1 is used twice, then 2 and 3 come, of which 3 evicts one of two blocks; then 1 and 2 are
  // tried. LRU keeps 2 and 3: 1 misses, evicts 2, 2 misses. LFU keeps 1: 1 hits. FIFO: as LRU.
  EXPECT_EQ(Hits({{1}, {1}, {2}, {3}, {1}}, 2),
            (Expected{{"LRU", 1}, {"LFU", 2}, {"FIFO", 1}, {"cost-aware", 2}, {"pool", 2}}));
  // A use renews a block's place for LRU and not for FIFO.
  EXPECT_EQ(Hits({{1}, {2}, {1}, {3}, {1}}, 2),
            (Expected{{"LRU", 2}, {"LFU", 2}, {"FIFO", 1}, {"cost-aware", 2}, {"pool", 2}}));
  // A prompt's end goes before its beginning.
  EXPECT_EQ(Hits({{1, 2, 3}, {1, 2, 3}}, 2)["LRU"], 2);
}

TEST(CachePolicies, NoneAnswersMoreThanTheCeiling) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::vector<std::vector<uint64_t>> prompts;
  for (int i = 0; i < 400; ++i) {
    std::vector<uint64_t>& prompt = prompts.emplace_back();
    uint64_t name = 0;
    for (uint64_t left = 1 + random() % 8; left > 0; --left)
      prompt.push_back(name = name * 4 + 1 + random() % 3);
  }
  Requests source(prompts);
  const int64_t ceiling = Summarize(source)->ceiling_tokens / kTraceBlockTokens;
  for (const auto& [policy, hits] : Hits(prompts, 1 << 20)) EXPECT_EQ(hits, ceiling) << policy;
  for (const int64_t blocks : {1, 20, 200}) {
    for (const auto& [policy, hits] : Hits(prompts, blocks)) {
      EXPECT_LE(hits, ceiling) << policy;
      EXPECT_LE(Hits(prompts, 1)[policy], hits) << policy << ": " << blocks << " blocks";
    }
  }
}

}  // namespace
}  // namespace tandem::sim
