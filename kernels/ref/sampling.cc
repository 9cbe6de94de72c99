// The choice of a token (kernels/api/sampling.h) without shortcuts: sort all tokens, in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

struct Candidate {
  int32_t token;
  double logit;
};

bool Better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Of a finite logit, a penalty or a quotient may exceed the floats. Minus infinity excludes a
// token.
double KeepFinite(double logit) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return logit > -INFINITY ? std::clamp(logit, -kLargest, kLargest) : -INFINITY;
}

std::vector<double> Adjusted(const SamplingArgs& args) {
  std::vector<double> logits(args.logits, args.logits + args.vocab_size);
  for (double& logit : logits) {
    if (std::isnan(logit)) logit = -INFINITY;
    logit = std::min(logit, static_cast<double>(std::numeric_limits<float>::max()));
  }
  for (int32_t i = 0; i < args.num_biases; ++i) logits[args.biases[i].token] += args.biases[i].bias;
  for (int32_t i = 0; args.allowed_tokens != nullptr && i < args.vocab_size; ++i) {
    if ((args.allowed_tokens[i / 32] >> (i % 32) & 1u) == 0) logits[i] = -INFINITY;
  }
  for (int32_t i = 0; i < args.num_counts; ++i) {
    const TokenCount& seen = args.counts[i];
    double& logit = logits[seen.token];
    if (seen.prompt_count + seen.output_count > 0) {
      logit = logit > 0 ? logit / args.repetition_penalty : logit * args.repetition_penalty;
    }
    if (seen.output_count > 0) {
      logit -=
          args.presence_penalty + static_cast<double>(args.frequency_penalty) * seen.output_count;
    }
    logit = KeepFinite(logit);
  }
  return logits;
}

// Keeps the candidates that min-p, top-k and top-p leave. REQUIRES: best first.
void Filter(const SamplingArgs& args, std::vector<Candidate>* candidates) {
  if (candidates->empty()) return;
  const double most = candidates->front().logit;
  auto p = [&](const Candidate& c) { return std::exp(c.logit - most); };
  while (p(candidates->back()) < args.min_p) candidates->pop_back();
  if (args.top_k > 0 && candidates->size() > static_cast<size_t>(args.top_k)) {
    candidates->resize(static_cast<size_t>(args.top_k));
  }
  if (args.top_p >= 1.0f) return;
  double total = 0, reached = 0;
  for (const Candidate& c : *candidates) total += p(c);
  size_t count = 0;
  while (count < candidates->size() && reached < args.top_p * total) {
    reached += p((*candidates)[count++]);
  }
  candidates->resize(count);
}

double Gumbel(const SamplingArgs& args, int32_t token) {
  const uint32_t counter[4] = {static_cast<uint32_t>(token) / 4, args.position, args.sequence_index,
                               0};
  const uint32_t key[2] = {static_cast<uint32_t>(args.seed),
                           static_cast<uint32_t>(args.seed >> 32)};
  const uint32_t word = Philox4x32_10(counter, key).word[token % 4];
  const double rest = std::min((word + 0.5) * 0x1p-32, 1.0 - 0x1p-24);
  return -std::log(-std::log1p(-rest));
}

void FillLogprobs(const SamplingArgs& args, SamplingResult* result) {
  std::vector<Candidate> all;
  for (int32_t i = 0; i < args.vocab_size; ++i) {
    all.push_back({i, std::isnan(args.logits[i]) ? -INFINITY : double{args.logits[i]}});
  }
  std::sort(all.begin(), all.end(), Better);
  const double most = all.front().logit;
  double sum = 0;
  for (const Candidate& c : all) sum += std::exp(c.logit - most);
  auto logprob = [&](double logit) { return static_cast<float>(logit - most - std::log(sum)); };
  if (result->token >= 0) result->logprob = logprob(args.logits[result->token]);
  for (int32_t i = 0; i < args.num_top_logprobs; ++i) {
    args.top_logprobs[i] = {all[i].token, logprob(all[i].logit)};
  }
}

}  // namespace

SamplingResult Sample(const SamplingArgs& args) {
  const std::vector<double> logits = Adjusted(args);
  std::vector<Candidate> candidates;
  for (int32_t i = 0; i < args.vocab_size; ++i) {
    const double temperature = args.temperature == 0 ? 1.0 : args.temperature;
    if (logits[i] > -INFINITY) candidates.push_back({i, KeepFinite(logits[i] / temperature)});
  }
  std::sort(candidates.begin(), candidates.end(), Better);
  if (args.temperature > 0) {
    Filter(args, &candidates);
    for (Candidate& c : candidates) c.logit += Gumbel(args, c.token);
  }
  SamplingResult result;
  const auto best = std::min_element(candidates.begin(), candidates.end(), Better);
  if (best != candidates.end()) result.token = best->token;
  if (args.want_logprob || args.num_top_logprobs > 0) FillLogprobs(args, &result);
  return result;
}

}  // namespace tandem::kernels::ref
