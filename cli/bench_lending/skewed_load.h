// A load that fills some nodes and leaves others: long requests come first, one a node, and short
// ones come at once while these run. What the cluster generates until the last short one is
// answered says what the memory beside the long ones is worth.
// Invariant: equal options give equal requests. Thread safety: none; one thread at a time.
// Owner: the bench lending command.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cli/bench_serve/workload.h"
#include "cli/report/statistics.h"
#include "common/runtime/random.h"

namespace tandem::cli {

struct SkewedLoadOptions {
  int64_t long_ones = 0, short_ones = 0;
  int64_t pool_tokens = 0;  // of one node; at least 100
  uint64_t seed = 1;
};

class SkewedLoad final : public Workload {
 public:
  // Long ones run for so long before short ones come: their prompts are computed by then.
  static constexpr absl::Duration kHeadStart = absl::Seconds(1);
  static constexpr int32_t kShortPrompt = 6, kShortAnswer = 10;

  explicit SkewedLoad(const SkewedLoadOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed)) {}

  // A long one's prompt and answer fill a pool but for some tokens: a twenty-fifth part of the pool
  // is answer.
  LoadRequest Next() override;
  // As LoadOptions::next_gap.
  std::optional<absl::Duration> NextGap();

 private:
  const SkewedLoadOptions options_;
  const std::unique_ptr<Random> random_;
  int64_t next_ = 0, gaps_ = 0;
};

// Generated tokens a second from the first short request until the last of them is answered; of a
// long answer, the part of its time that falls into this time. Records in any order, the long ones
// having the first `long_ones` indices; those that failed count as nothing. 0 without a short one.
double SkewedTokensPerSecond(absl::Span<const RequestRecord> records, int64_t long_ones);

}  // namespace tandem::cli
