// Requests of which some are long, drawn from a seed: half prompt, half answer.
// Invariant: equal options give equal requests. Thread safety: none; one thread at a time.
// Owner: the bench lending command.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/bench_serve/lengths.h"
#include "cli/bench_serve/workload.h"
#include "common/runtime/random.h"

namespace tandem::cli {

struct MixedWorkloadOptions {
  // Tokens of a request, prompt and answer together; at least 2.
  LengthRange short_tokens, long_tokens;
  double long_share = 0;  // of the requests, in [0, 1]
  uint64_t seed = 1;
};

class MixedWorkload final : public Workload {
 public:
  explicit MixedWorkload(const MixedWorkloadOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed)) {}

  // Long ones come at even distances, so that every run has its share.
  LoadRequest Next() override;

 private:
  const MixedWorkloadOptions options_;
  const std::unique_ptr<Random> random_;
  int64_t next_ = 0;
};

}  // namespace tandem::cli
