#include "cli/bench_trace/trace_workload.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/trace/shrunk_source.h"

namespace tandem::cli {

absl::StatusOr<std::unique_ptr<TraceWorkload>> TraceWorkload::Create(
    const Options& options, std::unique_ptr<sim::WorkloadSource> source) {
  if (!sim::CanShrink(options.shrink))
    return absl::InvalidArgumentError(absl::StrCat("shrink is ", options.shrink,
                                                   ", expected a power of two from 1 to ",
                                                   sim::kTraceShrinkMax));
  if (options.token_ids.max - options.token_ids.min + 1 < kTokenIdsMin)
    return absl::InvalidArgumentError(
        absl::StrCat("token ids ", options.token_ids.min, "..", options.token_ids.max,
                     " are too few, expected at least ", kTokenIdsMin));
  std::unique_ptr<TraceWorkload> workload(new TraceWorkload(options, std::move(source)));
  workload->Read();
  if (!workload->status_.ok()) return workload->status_;
  return workload;
}

void TraceWorkload::Read() {
  auto read = source_->Next();
  next_.reset();
  status_ = read.status();
  if (!read.ok() || !read->has_value()) return;
  sim::TraceRequest shrunk = **read;
  shrunk.prompt_tokens = sim::ShrunkTokens(shrunk.prompt_tokens, options_.shrink);
  const absl::StatusOr<int64_t> ceiling = ceiling_.OfNext(shrunk);
  status_ = ceiling.status();
  if (!ceiling.ok()) return;
  ceilings_.push_back(*ceiling);
  next_ = **std::move(read);
}

std::vector<int32_t> TraceWorkload::MakeTokens(const sim::TraceRequest& request) const {
  const int64_t block_tokens = sim::kTraceBlockTokens / options_.shrink;
  const int64_t count = sim::ShrunkTokens(request.prompt_tokens, options_.shrink);
  const auto base = static_cast<uint64_t>(options_.token_ids.max - options_.token_ids.min + 1);
  std::vector<int32_t> tokens(static_cast<size_t>(count), options_.token_ids.min);
  const bool named = !request.blocks.empty();
  for (int64_t begin = 0; begin < count; begin += block_tokens) {
    // Requests without names are named by their line, beside the names of all traces.
    uint64_t name = named ? request.blocks[static_cast<size_t>(begin / block_tokens)]
                          : sim::kBlockNamesMax + static_cast<uint64_t>(request.line);
    for (int64_t i = begin; i < std::min(count, begin + block_tokens) && name > 0; ++i) {
      tokens[static_cast<size_t>(i)] += static_cast<int32_t>(name % base);
      name /= base;
    }
  }
  return tokens;
}

LoadRequest TraceWorkload::Next() {
  if (!next_.has_value()) return last_;
  last_ = {};
  last_.index = given_;
  last_.tokens = MakeTokens(*next_);
  last_.max_tokens = static_cast<int32_t>(next_->output_tokens);
  last_.seed = options_.seed + static_cast<uint64_t>(given_);
  last_at_ = next_->at;
  ++given_;
  Read();
  return last_;
}

std::optional<absl::Duration> TraceWorkload::NextGap() const {
  if (!next_.has_value()) return std::nullopt;
  return given_ == 0 ? absl::ZeroDuration() : next_->at - last_at_;
}

}  // namespace tandem::cli
