// The requests of a trace for a real cluster. Traces name blocks and hold no text, so tokens are
// made up: two prompts begin alike exactly as far as the trace says.
// Invariant: equal options and an equal source give equal requests. Thread safety: none; one thread
// at a time. Owner: the bench trace command.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/bench_serve/lengths.h"
#include "cli/bench_serve/workload.h"
#include "sim/trace/trace_summary.h"
#include "sim/trace/workload_source.h"

namespace tandem::cli {

class TraceWorkload final : public Workload {
 public:
  struct Options {
    LengthRange token_ids = kAnyModelsTokenIds;  // that prompts are made of
    // Prompts have this part of the trace's tokens, and blocks as well: 512 / shrink tokens.
    int32_t shrink = 1;
    uint64_t seed = 1;
  };
  static constexpr int32_t kTokenIdsMin = 10;  // different ones

  // Reads the first request. Errors: the source's; kInvalidArgument for options out of range.
  static absl::StatusOr<std::unique_ptr<TraceWorkload>> Create(
      const Options& options, std::unique_ptr<sim::WorkloadSource> source);

  // The next request; behind the trace's end, its last one again.
  LoadRequest Next() override;
  // From the request that Next gave last to the one that it will give next; nullopt at the end or
  // after an error. Before the first Next: 0.
  std::optional<absl::Duration> NextGap() const;
  // By index: what one cache without limit would answer of the prompt, in tokens of the prompt as
  // it is sent. Bound: the requests of the trace.
  const std::vector<int64_t>& ceilings() const { return ceilings_; }
  // Of the source.
  const absl::Status& status() const { return status_; }

 private:
  TraceWorkload(const Options& options, std::unique_ptr<sim::WorkloadSource> source)
      : options_(options),
        source_(std::move(source)),
        ceiling_(sim::kTraceBlockTokens / options.shrink) {}

  void Read();
  std::vector<int32_t> MakeTokens(const sim::TraceRequest& request) const;

  const Options options_;
  const std::unique_ptr<sim::WorkloadSource> source_;
  sim::PrefixCeiling ceiling_;
  std::vector<int64_t> ceilings_;
  std::optional<sim::TraceRequest> next_;
  absl::Duration last_at_;
  LoadRequest last_;
  int64_t given_ = 0;
  absl::Status status_;
};

}  // namespace tandem::cli
