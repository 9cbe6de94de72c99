#include "router/front_end/trace_store.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "common/rpc/convert.h"
#include "router/core/request_report.h"

namespace tandem::router {

TraceStore::Trace& TraceStore::At(const std::string& request_id, absl::Time submitted) {
  const double submitted_s = absl::ToDoubleSeconds(submitted - absl::UnixEpoch());
  const auto found = by_id_.find(request_id);
  if (found != by_id_.end()) {
    if (found->second->summary.submitted_s == submitted_s) return *found->second;
    traces_.erase(found->second);
    by_id_.erase(found);
  }
  if (static_cast<int64_t>(traces_.size()) >= requests_max_) {
    by_id_.erase(traces_.front().summary.request_id);
    traces_.pop_front();
  }
  Trace& trace = traces_.emplace_back();
  trace.summary.request_id = request_id;
  trace.summary.submitted_s = submitted_s;
  by_id_[request_id] = std::prev(traces_.end());
  return trace;
}

void TraceStore::OnDone(const std::string& request_id, absl::Time submitted,
                        const SequenceDone& done, const std::shared_ptr<const ServiceTier>& tier) {
  if (requests_max_ == 0) return;
  absl::MutexLock lock(&mutex_);
  Trace& trace = At(request_id, submitted);
  trace.tier = tier;
  trace.summary.total_ms = std::max(trace.summary.total_ms, done.timing.total_ms());
  trace.summary.output_tokens += done.usage.output_tokens();
  v1::RequestTrace more;
  v1::Finished& finished = *more.add_sequences();
  finished.set_sequence_index(done.sequence_index);
  finished.set_reason(rpc::ToWire(done.reason));
  *finished.mutable_usage() = done.usage;
  *finished.mutable_route() = done.route;
  *finished.mutable_timing() = done.timing;
  const auto had = static_cast<size_t>(done.timing.gap_ms_size());
  const size_t kept = std::min(had, kTimingGapsMax - trace.gaps);
  trace.gaps += kept;
  finished.mutable_timing()->mutable_gap_ms()->Truncate(static_cast<int>(kept));
  finished.mutable_timing()->set_gaps_dropped(done.timing.gaps_dropped() +
                                              static_cast<int32_t>(had - kept));
  trace.placements_dropped += done.placements_dropped;
  for (const auto& placement : done.placements) {
    if (trace.placements < kPlacementsMax) {
      *more.add_placements() = *placement;
      ++trace.placements;
    } else {
      ++trace.placements_dropped;
    }
  }
  // Messages one after another are one message with the lists of all.
  more.AppendToString(&trace.bytes);
  trace.legs.push_back(done.decode_leg);
}

void TraceStore::OnLent(const LentReport& report) {
  if (report.leg.number == 0 || report.lent.ByteSizeLong() > kLentBytesMax) return;
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(report.request_id);
  if (found == by_id_.end()) return;
  Trace& kept = *found->second;
  const auto leg = std::find(kept.legs.begin(), kept.legs.end(), report.leg);
  v1::RequestTrace trace;
  if (leg == kept.legs.end() || !trace.ParseFromString(kept.bytes)) return;
  v1::Route& route =
      *trace.mutable_sequences(static_cast<int>(leg - kept.legs.begin()))->mutable_route();
  if (route.decode_node() != report.decode_node) return;
  *route.mutable_lent() = report.lent;
  kept.bytes = trace.SerializeAsString();
}

void TraceStore::OnFailed(const std::string& request_id, absl::Time submitted,
                          const absl::Status& why, const std::shared_ptr<const ServiceTier>& tier) {
  if (requests_max_ == 0) return;
  absl::MutexLock lock(&mutex_);
  Trace& trace = At(request_id, submitted);
  trace.tier = tier;
  trace.summary.failed = true;
  trace.error = absl::StrCat(absl::StatusCodeToString(why.code()), ": ", why.message());
}

absl::StatusOr<v1::RequestTrace> TraceStore::Find(const std::string& request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(request_id);
  if (found == by_id_.end())
    return absl::NotFoundError(absl::StrCat("request_id: ", ShownInQuotes(request_id),
                                            " is not among the last ", requests_max_,
                                            " finished requests of this router"));
  const Trace& kept = *found->second;
  v1::RequestTrace trace;
  if (!trace.ParseFromString(kept.bytes))
    return absl::InternalError(absl::StrCat("the trace of ", request_id, " cannot be read"));
  trace.set_error(kept.error);
  trace.set_request_id(kept.summary.request_id);
  trace.set_submitted_s(kept.summary.submitted_s);
  trace.set_placements_dropped(kept.placements_dropped);
  if (kept.tier != nullptr) {
    v1::ServiceGoals& goals = *trace.mutable_goals();
    goals.set_service_tier(kept.tier->name);
    goals.set_first_token_ms(absl::ToDoubleMilliseconds(kept.tier->ttft_slo));
    goals.set_gap_ms(absl::ToDoubleMilliseconds(kept.tier->gap_slo));
  }
  return trace;
}

int64_t TraceStore::bytes() const {
  absl::MutexLock lock(&mutex_);
  int64_t bytes = 0;
  for (const Trace& trace : traces_)
    bytes += static_cast<int64_t>(trace.bytes.capacity() + trace.error.capacity());
  return bytes;
}

std::vector<TraceSummary> TraceStore::Recent(absl::string_view prefix, size_t count) const {
  std::vector<TraceSummary> recent;
  absl::MutexLock lock(&mutex_);
  size_t looked_at = 0;
  for (auto trace = traces_.rbegin(); trace != traces_.rend(); ++trace) {
    if (recent.size() >= count || ++looked_at > kRecentScanMax) break;
    if (absl::StartsWith(trace->summary.request_id, prefix)) recent.push_back(trace->summary);
  }
  return recent;
}

}  // namespace tandem::router
