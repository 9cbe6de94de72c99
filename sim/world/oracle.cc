#include "sim/world/oracle.h"

#include "absl/strings/str_cat.h"
#include "common/runtime/random.h"

namespace tandem::sim {

namespace {

constexpr TokenId kEos = 258;  // the hash engine's

}  // namespace

engine::HashEngineOptions EngineOptions(const Topology& topology) {
  engine::HashEngineOptions options;
  options.num_layers = 2;
  options.block_tokens = static_cast<int32_t>(topology.block_tokens);
  options.kv_bytes_per_token_layer = 8;
  options.context_tokens = 1024;
  options.eos_every = topology.eos_every;
  return options;
}

router::RequestInput ToInput(const SimRequest& request, int index) {
  router::RequestInput input;
  input.id = RequestId(absl::StrCat("r", index));
  std::vector<TokenId> prompt;
  for (int64_t i = 0; i < request.shared_tokens; ++i)
    prompt.push_back(static_cast<TokenId>((request.family * 31 + i * 7 + 3) % 256));
  const auto random = NewSeededRandom(static_cast<uint64_t>(request.own_seed));
  for (int64_t i = 0; i < request.own_tokens; ++i)
    prompt.push_back(static_cast<TokenId>(random->Below(256)));
  input.prompt = std::move(prompt);
  input.sampling.temperature = request.sampled != 0 ? 1.0 : 0.0;
  input.sampling.seed = static_cast<uint64_t>(request.seed);
  if (request.logprobs != 0) input.sampling.logprobs = static_cast<int32_t>(request.logprobs);
  input.stop.max_tokens = static_cast<int32_t>(request.max_tokens);
  input.eos_token_ids = {kEos};
  input.sequences = static_cast<int32_t>(request.answers);
  input.priority = static_cast<int32_t>(request.priority);
  if (request.salt != 0) input.cache_salt = absl::StrCat("tenant-", request.salt);
  return input;
}

OracleAnswer Oracle(const engine::HashEngineOptions& engine, const router::RequestInput& input,
                    int32_t sequence_index) {
  OracleAnswer answer;
  std::vector<TokenId> tokens = *input.prompt;
  while (answer.reason == request::FinishReason::kNone) {
    const TokenId next =
        engine::HashEngineNextToken(engine, tokens, input.sampling, sequence_index);
    tokens.push_back(next);
    answer.tokens.push_back(next);
    answer.reason = request::CheckStop(input.stop, input.eos_token_ids, next,
                                       static_cast<int32_t>(answer.tokens.size()));
  }
  return answer;
}

}  // namespace tandem::sim
