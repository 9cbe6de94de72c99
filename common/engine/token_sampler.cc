#include "common/engine/token_sampler.h"

#include <algorithm>
#include <limits>

namespace tandem::engine {
namespace {

// The nearest positive, finite float, for parameters that must be both.
float PositiveFloat(double value) {
  return static_cast<float>(std::clamp(value, double{std::numeric_limits<float>::min()},
                                       double{std::numeric_limits<float>::max()}));
}

TokenMask MaskOf(absl::Span<const TokenId> tokens, size_t vocab_size) {
  TokenMask mask(vocab_size / 32 + 1);
  for (const TokenId token : tokens) mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  return mask;
}

// Intersects the mask with `other`.
void Narrow(absl::Span<const uint32_t> other, TokenMask& mask) {
  if (mask.empty()) {
    mask.assign(other.begin(), other.end());
    return;
  }
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= i < other.size() ? other[i] : 0;
}

// The tokens that both allowed_token_ids and the slice's constraint allow.
TokenMask AllowedMask(const SequenceSlice& slice, size_t vocab_size) {
  const std::vector<TokenId>& listed = slice.sampling->allowed_token_ids;
  TokenMask mask = listed.empty() ? TokenMask() : MaskOf(listed, vocab_size);
  if (!slice.allowed.empty()) Narrow(slice.allowed, mask);
  return mask;
}

// The one token that `mask` allows, or -1.
TokenId OnlyToken(const TokenMask& mask) {
  TokenId only = -1;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) continue;
    if (only >= 0 || (mask[i] & (mask[i] - 1)) != 0) return -1;
    only = static_cast<TokenId>(i * 32) + __builtin_ctz(mask[i]);
  }
  return only;
}

void Ban(absl::Span<const TokenId> tokens, size_t vocab_size, TokenMask& mask) {
  if (mask.empty()) mask.assign(vocab_size / 32 + 1, ~0u);
  for (const TokenId token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= vocab_size) continue;
    mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
  }
}

// Sets the inputs that say which tokens may come next.
void FillChoice(const SequenceSlice& slice, size_t vocab_size, SamplingInputs& inputs) {
  const request::SamplingParams& params = *slice.sampling;
  inputs.mask = AllowedMask(slice, vocab_size);
  const auto output =
      slice.tokens.subspan(std::min<size_t>(slice.prompt_tokens, slice.tokens.size()));
  const std::vector<TokenId> banned =
      request::BannedTokens(params, slice.stop, slice.eos_token_ids, output);
  inputs.banned = !banned.empty();
  if (inputs.banned) {
    inputs.unbanned = inputs.mask;
    Ban(banned, vocab_size, inputs.mask);
  }
  // A constraint often allows one token only. Then there is nothing to draw.
  if (!slice.allowed.empty() && !params.logprobs.has_value()) {
    inputs.only = OnlyToken(inputs.mask);
  }
}

}  // namespace

SampledToken ToSampled(TokenId token, float logprob, absl::Span<const kernels::TokenLogprob> top) {
  SampledToken sampled{.token = token, .logprob = logprob};
  for (const kernels::TokenLogprob& entry : top) {
    sampled.top_logprobs.push_back({entry.token, entry.logprob});
  }
  return sampled;
}

SamplingInputs InputsOf(const SequenceSlice& slice, int32_t vocab_size) {
  const request::SamplingParams& params = *slice.sampling;
  SamplingInputs inputs;
  FillChoice(slice, static_cast<size_t>(vocab_size), inputs);
  if (inputs.only >= 0) return inputs;
  inputs.biases.reserve(params.logit_bias.size());
  for (const auto& [token, bias] : params.logit_bias) inputs.biases.push_back({token, bias});
  kernels::SamplingArgs& args = inputs.args;
  args.vocab_size = vocab_size;
  args.temperature =
      params.temperature < kGreedyBelow ? 0.0f : static_cast<float>(params.temperature);
  args.top_k = params.top_k;
  args.top_p = PositiveFloat(params.top_p);
  args.min_p = static_cast<float>(params.min_p);
  args.biases = inputs.biases.data();
  args.num_biases = static_cast<int32_t>(inputs.biases.size());
  args.allowed_tokens = inputs.mask.empty() ? nullptr : inputs.mask.data();
  args.repetition_penalty = PositiveFloat(params.repetition_penalty);
  args.presence_penalty = static_cast<float>(params.presence_penalty);
  args.frequency_penalty = static_cast<float>(params.frequency_penalty);
  if (params.has_penalties()) {
    if (slice.counts == nullptr) {
      inputs.counts.Extend(slice.tokens, slice.prompt_tokens, vocab_size);
    }
    const auto counts = slice.counts != nullptr ? slice.counts->counts() : inputs.counts.counts();
    args.counts = counts.data();
    args.num_counts = static_cast<int32_t>(counts.size());
  }
  args.seed = params.seed;
  args.sequence_index = static_cast<uint32_t>(slice.sequence_index);
  args.position = static_cast<uint32_t>(slice.tokens.size());
  args.want_logprob = params.logprobs.has_value();
  args.num_top_logprobs = std::min(params.logprobs.value_or(0), vocab_size);
  return inputs;
}

SampledToken SampleToken(const SamplingInputs& inputs, const float* logits,
                         const kernels::Backend& backend, void* scratch) {
  if (inputs.only >= 0) return SampledToken{.token = inputs.only};
  std::vector<kernels::TokenLogprob> top(static_cast<size_t>(inputs.args.num_top_logprobs));
  kernels::SamplingArgs args = inputs.args;
  args.logits = logits;
  args.top_logprobs = top.data();
  args.scratch = scratch;
  kernels::SamplingResult result = backend.sample(args);
  if (result.token < 0 && inputs.banned) {
    // Every allowed token is banned. Ignore the bans: otherwise the request would fail.
    args.allowed_tokens = inputs.unbanned.empty() ? nullptr : inputs.unbanned.data();
    result = backend.sample(args);
  }
  if (result.token < 0) return SampledToken{.no_choice = true};
  return ToSampled(result.token, result.logprob, top);
}

SampledToken SampleToken(const SequenceSlice& slice, absl::Span<const float> logits,
                         const kernels::Backend& backend, void* scratch) {
  return SampleToken(InputsOf(slice, static_cast<int32_t>(logits.size())), logits.data(), backend,
                     scratch);
}

SampledToken ScoreToken(TokenId token, int32_t num_top, absl::Span<const float> logits,
                        const kernels::Backend& backend, void* scratch) {
  std::vector<kernels::TokenLogprob> top(std::min<size_t>(num_top, logits.size()));
  // Greedy, with one allowed token: the result's log-probability is of the raw distribution.
  const TokenMask only = MaskOf(absl::MakeConstSpan(&token, 1), logits.size());
  kernels::SamplingArgs args;
  args.logits = logits.data();
  args.vocab_size = static_cast<int32_t>(logits.size());
  args.temperature = 0;
  args.allowed_tokens = only.data();
  args.want_logprob = true;
  args.num_top_logprobs = static_cast<int32_t>(top.size());
  args.top_logprobs = top.data();
  args.scratch = scratch;
  const kernels::SamplingResult result = backend.sample(args);
  return ToSampled(
      token, result.token < 0 ? -std::numeric_limits<float>::infinity() : result.logprob, top);
}

}  // namespace tandem::engine
