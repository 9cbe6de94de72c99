#include "common/node/sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/request/bad_words.h"
#include "common/rpc/convert.h"

namespace tandem::node {
namespace {

// Tokens of an answer for which a sequence has memory from the start. An answer of the public trace
// has 343 on average; one that grows beyond has its prompt copied within a step.
constexpr int32_t kAnswerRoom = 1024;

// The constraint's state; the delivered tokens are still to be read.
absl::Status FollowConstraint(const v1::SequenceSpec& wire, guided::ConstraintCache* constraints,
                              SequenceInput& input) {
  const request::GuidedParams params = rpc::FromWire(wire.guided());
  if (!params.any()) return absl::InvalidArgumentError("guided: no constraint is given");
  if (constraints == nullptr) {
    return absl::UnimplementedError(
        "guided: this node's tokenizer cannot be used, so it serves no constraints");
  }
  // The ConstraintGate had it compiled. Others may have displaced it since: then the router asks
  // again, because this thread compiles nothing.
  auto found = constraints->Find(params);
  if (!found.has_value()) {
    return absl::UnavailableError(
        "guided: this node has displaced the constraint by others before it was used: try again");
  }
  ASSIGN_OR_RETURN(std::shared_ptr<guided::Constraint> constraint, *std::move(found));
  input.matcher.emplace(std::move(constraint),
                        guided::Matcher::EndRules{.eos_token_ids = input.eos_token_ids,
                                                  .min_tokens = input.stop.min_tokens,
                                                  .ignore_eos = input.stop.ignore_eos});
  const auto delivered =
      absl::MakeConstSpan(input.prompt).last(static_cast<size_t>(input.delivered_tokens));
  if (delivered.empty()) return CheckNextToken(input);
  input.matcher->Defer(delivered);
  return absl::OkStatus();
}

absl::Status CheckTokens(absl::Span<const TokenId> prompt, int32_t vocab_size) {
  // Both figures have a clear sign bit for a token in range, and one of them a set one otherwise.
  // Compilers take a fixed number of tokens at a time.
  constexpr size_t kAtOnce = 32;
  const auto limit = static_cast<uint32_t>(vocab_size);
  uint32_t signs = 0;
  // A span checks each index, which compilers cannot do for several tokens at a time.
  const TokenId* const tokens = prompt.data();
  const auto look = [&](size_t at) {
    const auto token = static_cast<uint32_t>(tokens[at]);
    signs |= token | (limit - 1 - token);
  };
  size_t i = 0;
  for (; i + kAtOnce <= prompt.size(); i += kAtOnce)
    for (size_t j = 0; j < kAtOnce; ++j) look(i + j);
  for (; i < prompt.size(); ++i) look(i);
  if (static_cast<int32_t>(signs) >= 0) return absl::OkStatus();
  const auto wrong = std::find_if(prompt.begin(), prompt.end(), [limit](TokenId token) {
    return static_cast<uint32_t>(token) >= limit;
  });
  return absl::InvalidArgumentError(absl::StrCat("prompt[", wrong - prompt.begin(), "]: token ",
                                                 *wrong, ", expected one in [0, ", vocab_size,
                                                 ")"));
}

}  // namespace

absl::Status CheckNextToken(SequenceInput& input) {
  ASSIGN_OR_RETURN(const absl::Span<const uint32_t> allowed, input.matcher->Allowed());
  const std::vector<TokenId>& listed = input.sampling.allowed_token_ids;
  const auto both = [&](TokenId token) {
    return ((allowed[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
  };
  if (listed.empty() || std::any_of(listed.begin(), listed.end(), both)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "guided: the constraint allows none of allowed_token_ids at this token");
}

absl::StatusOr<SequenceInput> ParseSequence(const v1::SequenceSpec& wire, int32_t sequence_index,
                                            const engine::EngineSpec& spec,
                                            guided::ConstraintCache* constraints) {
  SequenceInput input;
  if (wire.prompt().empty()) return absl::InvalidArgumentError("prompt: is empty");
  if (wire.prompt_size() >= spec.context_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: ", wire.prompt_size(),
                                                   " tokens, expected less than the context of ",
                                                   spec.context_tokens));
  }
  RETURN_IF_ERROR(CheckTokens(wire.prompt(), spec.vocab_size));
  if (wire.delivered_tokens() < 0 || wire.delivered_tokens() >= wire.prompt_size()) {
    return absl::InvalidArgumentError(absl::StrCat("delivered_tokens: ", wire.delivered_tokens(),
                                                   ", expected one in [0, ", wire.prompt_size(),
                                                   ")"));
  }
  input.sampling = rpc::FromWire(wire.sampling());
  RETURN_IF_ERROR(request::Validate(input.sampling, spec.vocab_size, request::kLogprobsOfNodesMax));
  request::SortBadWords(input.sampling.bad_words);
  input.stop = rpc::FromWire(wire.stop());
  RETURN_IF_ERROR(request::Validate(input.stop, spec.vocab_size));
  if (wire.delivered_tokens() >= input.stop.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("delivered_tokens: ", wire.delivered_tokens(),
                     ", expected less than max_tokens = ", input.stop.max_tokens));
  }
  const int32_t answer = std::min(input.stop.max_tokens - wire.delivered_tokens(), kAnswerRoom);
  input.prompt.reserve(static_cast<size_t>(wire.prompt_size() + answer));
  // Pointers, since the field's iterators do not tell that its elements are in a row.
  input.prompt.assign(wire.prompt().data(), wire.prompt().data() + wire.prompt_size());
  input.delivered_tokens = wire.delivered_tokens();
  input.eos_token_ids.assign(wire.eos_token_ids().begin(), wire.eos_token_ids().end());
  input.cache_salt = wire.cache_salt();
  if (!(wire.kv_share() >= 0 && wire.kv_share() <= 1))
    return absl::InvalidArgumentError(
        absl::StrCat("kv_share: ", wire.kv_share(), ", expected one in [0, 1]"));
  input.owner = {wire.tenant(), wire.kv_share()};
  input.numerics_id = wire.numerics_id();
  input.sequence_index = sequence_index;
  input.priority = wire.priority();
  if (wire.has_prompt_logprobs()) {
    if (wire.prompt_logprobs() < 0 || wire.prompt_logprobs() > request::kLogprobsMax) {
      return absl::InvalidArgumentError(absl::StrCat("prompt_logprobs: ", wire.prompt_logprobs(),
                                                     ", expected one in [0, ",
                                                     request::kLogprobsMax, "]"));
    }
    input.prompt_logprobs = wire.prompt_logprobs();
  }
  if (wire.has_guided()) RETURN_IF_ERROR(FollowConstraint(wire, constraints, input));
  return input;
}

int64_t MaxTokens(const SequenceInput& input, int32_t context_tokens) {
  const int64_t full =
      static_cast<int64_t>(input.prompt.size()) - input.delivered_tokens + input.stop.max_tokens;
  return std::min<int64_t>(full, context_tokens);
}

v1::TokensBySource Sequence::PromptSources(int64_t received) const {
  v1::TokensBySource sources;
  sources.set_cached(std::min(cached_tokens + forked_tokens, prompt_tokens - received));
  sources.set_received(received);
  sources.set_computed(prompt_tokens - sources.cached() - received);
  sources.set_from_host_memory(brought_tokens.from_host_memory);
  sources.set_from_disk(brought_tokens.from_disk);
  sources.set_fetched(brought_tokens.fetched);
  return sources;
}

v1::GeneratedToken ToWire(const engine::SampledToken& sampled, int32_t index) {
  v1::GeneratedToken wire;
  wire.set_token_id(sampled.token);
  wire.set_index(index);
  wire.set_logprob(sampled.logprob);
  int32_t rank = 0;
  for (const engine::TopLogprob& top : sampled.top_logprobs) {
    v1::TokenLogprob& out = *wire.add_top_logprobs();
    out.set_token_id(top.token);
    out.set_logprob(top.logprob);
    out.set_rank(++rank);
  }
  return wire;
}

}  // namespace tandem::node
