// What naming the KV blocks of a prompt costs, with the class that routers and nodes use: per
// prompt, for each of the block sizes that a node may have.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "common/kv/block_hash.h"

namespace tandem::kv {
namespace {

void NamePrompt(benchmark::State& state) {
  const auto prompt_tokens = static_cast<size_t>(state.range(0));
  const auto block_tokens = static_cast<int>(state.range(1));
  std::mt19937 random(1);
  std::vector<TokenId> prompt(prompt_tokens);
  for (TokenId& token : prompt) token = static_cast<TokenId>(random() % 49152);
  BlockHasher hasher(BlockKey::FromSecret("a fleet's secret"));
  for (auto _ : state) {
    const BlockHash salt = hasher.Salt("fingerprint", "numerics", "tenant");
    benchmark::DoNotOptimize(hasher.Blocks(salt, prompt, block_tokens));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(NamePrompt)
    ->ArgNames({"tokens", "block"})
    ->ArgsProduct({{1000}, {16, 32, 64}})
    ->Args({100'000, 32})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tandem::kv

BENCHMARK_MAIN();
