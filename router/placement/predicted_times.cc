#include "router/placement/predicted_times.h"

#include <utility>

#include "router/placement/stored_tokens.h"

namespace tandem::router {

// More tokens; of as many, fewer from disk, then fewer from host memory; of equals, from a node
// that sends fewer prompts' KV.
bool PredictedTimes::Better(const Holder& a, const Holder& b) {
  if (a.tokens != b.tokens) return a.tokens > b.tokens;
  const auto slow = [](const Holder& holder) {
    return std::pair(holder.stored.disk, holder.stored.host);
  };
  if (slow(a) != slow(b)) return slow(a) < slow(b);
  return b.node != nullptr && a.node->prompts_sent() < b.node->prompts_sent();
}

PredictedTimes::PredictedTimes(const Fleet& fleet, const PrefixIndex& index, const Prompt& prompt,
                               const PrefixIndex::Matches& holders)
    : fleet_(fleet), prompt_(prompt) {
  if (prompt_.fetch_tokens_min <= 0) return;
  for (const auto& group : holders) {
    for (const PrefixIndex::Match& match : group) {
      const Node& node = *fleet.At(match.slot);
      const int64_t usable = (prompt_.tokens - 1) / node.block_tokens;
      const int64_t tokens =
          Trusted(node, std::min<int64_t>(match.blocks, usable) * int64_t{node.block_tokens});
      const Holder holder = {&node, tokens, StoredTokens(index, node, tokens, prompt_.hashes)};
      if (Better(holder, holders_[0])) {
        holders_[1] = holders_[0];
        holders_[0] = holder;
      } else if (Better(holder, holders_[1])) {
        holders_[1] = holder;
      }
    }
  }
}

int64_t PredictedTimes::Trusted(const Node& node, int64_t tokens) const {
  return node.record.Trusted(tokens, prompt_.now);
}

PromptTimes PredictedTimes::FromOwnBlocks(const Candidate& candidate) const {
  const Node& node = *candidate.node;
  const int64_t cached = Trusted(node, candidate.cached_tokens);
  const int64_t in_memory = std::min(cached, candidate.cached_tokens - candidate.stored.total());
  const double compute_us = node.PromptUs(in_memory, prompt_.tokens - in_memory);
  const absl::Time rank = node.RankOf(prompt_.urgency, compute_us, prompt_.now);
  PromptTimes times = {.wait_us = node.WaitUs(prompt_.tokens, rank, prompt_.now),
                       .compute_us = compute_us,
                       .late_us = node.record.LateUs(prompt_.now),
                       .computed_tokens = prompt_.tokens - in_memory};
  if (cached <= in_memory) return times;
  PromptTimes reads = times;
  const ReadTokens read = candidate.stored.Part(cached - in_memory);
  reads.read_us = node.ReadUs(read, prompt_.now);
  reads.read_host_us = node.ReadUs({.host = read.host}, prompt_.now);
  reads.compute_us = node.PromptUs(cached, prompt_.tokens - cached);
  reads.computed_tokens = prompt_.tokens - cached;
  return reads.first_token_us() < times.first_token_us() ? reads : times;
}

PromptTimes PredictedTimes::WithFetch(const Candidate& candidate) const {
  const Node& node = *candidate.node;
  const PromptTimes own = FromOwnBlocks(candidate);
  const int64_t cached = prompt_.tokens - own.computed_tokens;
  const Holder& holder = holders_[holders_[0].node == &node ? 1 : 0];
  if (holder.node == nullptr || holder.tokens - cached < prompt_.fetch_tokens_min) return own;
  // As SequenceLegs::FindHolder decides.
  const FetchTimes fetch =
      fleet_.Fetching(*holder.node, node, cached, holder.tokens - cached, holder.stored);
  if (!fetch.pays()) return own;
  const int64_t first_computed = cached + fetch.tokens;
  PromptTimes fetches = own;
  fetches.fetch_us = fetch.fetch_us;
  fetches.compute_us = node.PromptUs(first_computed, prompt_.tokens - first_computed);
  fetches.computed_tokens = prompt_.tokens - first_computed;
  return fetches;
}

DecodeTimes PredictedTimes::Decoding(const Candidate& candidate) const {
  const Node& node = *candidate.node;
  const int64_t others = std::max<int64_t>(0, node.sequences());
  const int64_t attended = std::max<int64_t>(0, node.tokens_held());
  DecodeTimes times;
  times.step_us = node.GenerateUs(others + 1, attended + prompt_.tokens);
  const double before_us = others == 0 ? 0 : node.GenerateUs(others, attended);
  const double answer = static_cast<double>(kAnswerTokens);
  // The others' steps get longer, and this sequence has its own.
  times.harm_us = answer * (static_cast<double>(others) * std::max(0.0, times.step_us - before_us) +
                            times.step_us);
  times.backlog_us = node.work.RemainingUs(prompt_.now);
  // An answer that will not fit beside what is there preempts a sequence, which is computed again.
  const int64_t grown = std::min(prompt_.tokens_total, prompt_.tokens + kAnswerTokens);
  if (node.blocks_for(grown) - candidate.cached_tokens / node.block_tokens >
      node.blocks_available())
    times.harm_us += node.PromptUs(0, prompt_.tokens);
  return times;
}

PlacementTimes PredictedTimes::Pair(const Candidate& prefill, const PromptTimes& prompt,
                                    const Candidate& decode, const DecodeTimes& decoding) const {
  const Node& node = *decode.node;
  const int64_t sent = prompt_.tokens - Trusted(node, decode.cached_tokens);
  const double wire_us = fleet_.TransferUs(*prefill.node, node, BytesOf(sent, node));
  PlacementTimes times = {
      .first_token_us = prompt.first_token_us(),
      .transfer_us = kTransferFixedUs + std::max(0.0, wire_us - prompt.compute_us),
      .step_us = decoding.step_us,
      .harm_us = decoding.harm_us};
  const double failed_us =
      prefill.node->record.FailedUs(prompt_.now) + node.record.FailedUs(prompt_.now);
  times.cost_us = times.first_token_us + times.transfer_us + decoding.backlog_us + failed_us +
                  kHarmWeight * times.harm_us;
  return times;
}

PlacementTimes PredictedTimes::Alone(const Candidate& decode, const PromptTimes& prompt,
                                     const DecodeTimes& decoding) const {
  // Each sequence there waits for the prompt's rows, with or without a limit for a step. One is
  // counted where there is none, because another request will come; a short prompt ends before.
  const bool is_short = prompt.computed_tokens <= prompt_.short_tokens;
  const double rows_us = std::max(0.0, prompt.compute_us - decode.node->profile().step_us);
  const auto others =
      static_cast<double>(std::max<int64_t>(is_short ? 0 : 1, decode.node->sequences()));
  const double local_us = is_short ? 0 : kLocalUs;
  PlacementTimes times = {.first_token_us = prompt.first_token_us(),
                          .step_us = decoding.step_us,
                          .harm_us = decoding.harm_us + kPauseWeight * others * rows_us + local_us};
  times.cost_us = times.first_token_us + decode.node->record.FailedUs(prompt_.now) +
                  kHarmWeight * times.harm_us;
  return times;
}

}  // namespace tandem::router
