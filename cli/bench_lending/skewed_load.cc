#include "cli/bench_lending/skewed_load.h"

#include <algorithm>

#include "cli/bench_serve/lengths.h"

namespace tandem::cli {

LoadRequest SkewedLoad::Next() {
  LoadRequest request;
  request.index = next_++;
  const auto pool = static_cast<int32_t>(options_.pool_tokens);
  const bool is_long = request.index < options_.long_ones;
  request.max_tokens = is_long ? pool / 25 : kShortAnswer;
  const int32_t prompt = is_long ? pool - pool / 25 - kShortPrompt : kShortPrompt;
  for (int32_t i = 0; i < prompt; ++i)
    request.tokens.push_back(DrawLength(kAnyModelsTokenIds, *random_));
  request.seed = options_.seed + static_cast<uint64_t>(request.index);
  return request;
}

std::optional<absl::Duration> SkewedLoad::NextGap() {
  const int64_t index = gaps_++;
  if (index >= options_.long_ones + options_.short_ones) return std::nullopt;
  return index == options_.long_ones ? kHeadStart : absl::ZeroDuration();
}

double SkewedTokensPerSecond(absl::Span<const RequestRecord> records, int64_t long_ones) {
  absl::Duration begin = absl::InfiniteDuration(), end = absl::ZeroDuration();
  double tokens = 0;
  for (const RequestRecord& record : records) {
    if (record.index < long_ones || !record.ok()) continue;
    begin = std::min(begin, record.intended);
    end = std::max(end, record.ended);
    tokens += record.output_tokens;
  }
  if (end <= begin) return 0;
  for (const RequestRecord& record : records) {
    if (record.index >= long_ones || !record.ok() || !record.first_token.has_value()) continue;
    const absl::Duration all = record.ended - *record.first_token;
    const absl::Duration part = std::min(end, record.ended) - std::max(begin, *record.first_token);
    if (all > absl::ZeroDuration() && part > absl::ZeroDuration())
      tokens += absl::FDivDuration(part, all) * record.output_tokens;
  }
  return tokens / absl::ToDoubleSeconds(end - begin);
}

}  // namespace tandem::cli
