#include "router/front_end/trace_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "router/core/request_report.h"

namespace tandem::router {

v1::RequestTrace& TraceStore::At(const std::string& request_id, absl::Time submitted) {
  const double submitted_s = absl::ToDoubleSeconds(submitted - absl::UnixEpoch());
  const auto found = by_id_.find(request_id);
  if (found != by_id_.end()) {
    if (found->second->submitted_s() == submitted_s) return *found->second;
    traces_.erase(found->second);
    by_id_.erase(found);
  }
  if (static_cast<int64_t>(traces_.size()) >= requests_max_) {
    by_id_.erase(traces_.front().request_id());
    // Reuses the memory of the oldest trace.
    traces_.splice(traces_.end(), traces_, traces_.begin());
    traces_.back().Clear();
  } else {
    traces_.emplace_back();
  }
  v1::RequestTrace& trace = traces_.back();
  trace.set_request_id(request_id);
  trace.set_submitted_s(submitted_s);
  by_id_[request_id] = std::prev(traces_.end());
  return trace;
}

void TraceStore::OnDone(const std::string& request_id, absl::Time submitted,
                        const RequestDone& done) {
  if (requests_max_ == 0) return;
  absl::MutexLock lock(&mutex_);
  v1::RequestTrace& trace = At(request_id, submitted);
  size_t gaps = 0;
  for (const v1::Finished& other : trace.sequences()) {
    gaps += static_cast<size_t>(other.timing().gap_ms_size());
  }
  v1::Finished& finished = *trace.add_sequences();
  finished.set_sequence_index(done.sequence_index);
  finished.set_reason(rpc::ToWire(done.reason));
  *finished.mutable_usage() = done.usage;
  *finished.mutable_route() = done.route;
  *finished.mutable_timing() = done.timing;
  const auto had = static_cast<size_t>(done.timing.gap_ms_size());
  const size_t kept = std::min(had, kTimingGapsMax - std::min(gaps, kTimingGapsMax));
  finished.mutable_timing()->mutable_gap_ms()->Truncate(static_cast<int>(kept));
  finished.mutable_timing()->set_gaps_dropped(done.timing.gaps_dropped() +
                                              static_cast<int32_t>(had - kept));
  for (const auto& placement : done.placements) {
    if (trace.placements_size() < kPlacementsMax) {
      *trace.add_placements() = *placement;
    } else {
      trace.set_placements_dropped(trace.placements_dropped() + 1);
    }
  }
}

void TraceStore::OnFailed(const std::string& request_id, absl::Time submitted,
                          const absl::Status& why) {
  if (requests_max_ == 0) return;
  absl::MutexLock lock(&mutex_);
  At(request_id, submitted)
      .set_error(absl::StrCat(absl::StatusCodeToString(why.code()), ": ", why.message()));
}

absl::StatusOr<v1::RequestTrace> TraceStore::Find(const std::string& request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(request_id);
  if (found != by_id_.end()) return *found->second;
  return absl::NotFoundError(absl::StrCat("request_id: '", request_id, "' is not among the last ",
                                          requests_max_, " finished requests of this router"));
}

std::vector<TraceSummary> TraceStore::Recent(absl::string_view prefix, size_t count) const {
  std::vector<TraceSummary> recent;
  absl::MutexLock lock(&mutex_);
  size_t looked_at = 0;
  for (auto trace = traces_.rbegin(); trace != traces_.rend(); ++trace) {
    if (recent.size() >= count || ++looked_at > kRecentScanMax) break;
    if (!absl::StartsWith(trace->request_id(), prefix)) continue;
    TraceSummary& summary = recent.emplace_back();
    summary.request_id = trace->request_id();
    summary.submitted_s = trace->submitted_s();
    summary.failed = !trace->error().empty();
    for (const v1::Finished& sequence : trace->sequences()) {
      summary.total_ms = std::max(summary.total_ms, sequence.timing().total_ms());
      summary.output_tokens += sequence.usage().output_tokens();
    }
  }
  return recent;
}

}  // namespace tandem::router
