#include "sim/world/oracle.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/node/sequence.h"
#include "common/runtime/random.h"
#include "router/core/beam_group.h"

namespace tandem::sim {

namespace {

constexpr TokenId kEos = 258;  // the hash engine's

OracleAnswer AnswerOf(const engine::HashEngineOptions& engine, const router::RequestInput& input,
                      int32_t sequence_index) {
  OracleAnswer answer;
  std::vector<TokenId> tokens = *input.prompt;
  while (answer.reason == request::FinishReason::kNone) {
    const TokenId next =
        engine::HashEngineNextToken(engine, tokens, *input.sampling, sequence_index);
    tokens.push_back(next);
    answer.tokens.push_back(next);
    answer.reason = request::CheckStop(*input.stop, input.eos_token_ids, next,
                                       static_cast<int32_t>(answer.tokens.size()));
  }
  return answer;
}

// The router's own rules of the search, on tokens that no node computed.
OracleAnswers BeamOracle(const engine::HashEngineOptions& engine,
                         const router::RequestInput& input) {
  OracleAnswers oracle;
  router::BeamGroup group(input, absl::UnixEpoch());
  bool over = false;
  while (!over) {
    const std::vector<router::RequestInput> beams = group.StepInputs(absl::UnixEpoch());
    for (size_t i = 0; i < beams.size(); ++i) {
      const engine::SampledToken next = engine::HashEngineSample(
          engine, *beams[i].prompt, *beams[i].sampling, beams[i].sequence_index);
      router::SequenceAnswer::Outcome outcome;
      outcome.tokens.push_back(node::ToWire(next, 0));
      outcome.done.emplace().reason = request::FinishReason::kLength;
      group.OnOutcome(static_cast<int32_t>(i), outcome, /*numerics_id=*/"");
      oracle.sequences.push_back(*beams[i].prompt);
    }
    over = group.Advance(/*capacity_tokens=*/0);
  }
  for (const router::ClientEvent& event : group.Answers(absl::UnixEpoch())) {
    if (const auto* tokens = std::get_if<router::TokensReady>(&event)) {
      OracleAnswer& answer = oracle.answers.emplace_back();
      for (const v1::GeneratedToken& token : tokens->tokens)
        answer.tokens.push_back(token.token_id());
    } else if (const auto* done = std::get_if<router::SequenceDone>(&event)) {
      oracle.answers.back().reason = done->reason;
    }
  }
  return oracle;
}

}  // namespace

engine::HashEngineOptions EngineOptions(const Topology& topology) {
  engine::HashEngineOptions options;
  options.num_layers = topology.window_slots > 0 ? 3 : 2;
  options.windowed_layers = topology.window_slots > 0 ? 1 : 0;
  options.window_tokens =
      topology.window_slots > 0 ? static_cast<int32_t>(topology.window_tokens) : 0;
  options.block_tokens = static_cast<int32_t>(topology.block_tokens);
  options.kv_bytes_per_token_layer = 8;
  options.context_tokens = 2048;
  options.unit_tokens = static_cast<int32_t>(topology.block_tokens * topology.unit_blocks);
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
  input.sampling.Edit().temperature = request.sampled != 0 ? 1.0 : 0.0;
  input.sampling.Edit().seed = static_cast<uint64_t>(request.seed);
  if (request.logprobs != 0)
    input.sampling.Edit().logprobs = static_cast<int32_t>(request.logprobs);
  input.stop.Edit().max_tokens = static_cast<int32_t>(request.max_tokens);
  input.eos_token_ids = {kEos};
  input.sequences = static_cast<int32_t>(request.answers);
  if (request.beams > 0) {
    input.beams = router::BeamParams{.width = static_cast<int32_t>(request.beams)};
    input.sequences = std::min(input.sequences, input.beams->width);
  }
  input.priority = static_cast<int32_t>(request.priority);
  if (request.ttft_us > 0 || request.gap_us > 0) {
    router::ServiceTier tier{.name = "goals",
                             .ttft_slo = absl::Microseconds(request.ttft_us),
                             .gap_slo = absl::Microseconds(request.gap_us)};
    if (request.refuse_late != 0) tier.late = router::LatePolicy::kRefuse;
    input.tier = std::make_shared<const router::ServiceTier>(std::move(tier));
  }
  if (request.salt != 0) input.cache_salt = absl::StrCat("tenant-", request.salt);
  return input;
}

OracleAnswers Oracle(const engine::HashEngineOptions& engine, const router::RequestInput& input) {
  if (input.beams.has_value()) return BeamOracle(engine, input);
  OracleAnswers oracle;
  for (int32_t index = 0; index < input.sequences; ++index) {
    oracle.answers.push_back(AnswerOf(engine, input, index));
    std::vector<TokenId>& tokens = oracle.sequences.emplace_back(*input.prompt);
    const std::vector<TokenId>& answer = oracle.answers.back().tokens;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
  }
  return oracle;
}

}  // namespace tandem::sim
