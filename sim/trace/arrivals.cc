#include "sim/trace/arrivals.h"

#include <deque>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::sim {
namespace {

class AdaptedSource final : public WorkloadSource {
 public:
  AdaptedSource(std::unique_ptr<WorkloadSource> source, const ArrivalOptions& options)
      : source_(std::move(source)), options_(options) {}

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    if (group_.empty()) RETURN_IF_ERROR(ReadGroup());
    if (group_.empty()) return std::optional<TraceRequest>();
    TraceRequest request = std::move(group_.front());
    group_.pop_front();
    request.at /= options_.speed;
    return std::optional<TraceRequest>(std::move(request));
  }

 private:
  // The next request of the source, as far as requests_max allows.
  absl::Status Read(std::optional<TraceRequest>& request) {
    request.reset();
    if (options_.requests_max > 0 && read_ == options_.requests_max) return absl::OkStatus();
    ASSIGN_OR_RETURN(request, source_->Next());
    ++read_;
    return absl::OkStatus();
  }

  // Fills group_ with the requests of one moment, and ahead_ with the one that follows them.
  absl::Status ReadGroup() {
    if (!ahead_.has_value()) RETURN_IF_ERROR(Read(ahead_));
    if (!ahead_.has_value()) return absl::OkStatus();
    do {
      group_.push_back(*std::move(ahead_));
      RETURN_IF_ERROR(Read(ahead_));
    } while (options_.spread && ahead_.has_value() && ahead_->at == group_.front().at &&
             group_.size() < kSpreadMax);
    // The last moment has no next one: it lasts as long as the one before it.
    if (ahead_.has_value()) moment_ = ahead_->at - group_.front().at;
    const absl::Duration step = moment_ / static_cast<double>(group_.size());
    for (size_t i = 1; i < group_.size(); ++i) group_[i].at = group_[i - 1].at + step;
    return absl::OkStatus();
  }

  const std::unique_ptr<WorkloadSource> source_;
  const ArrivalOptions options_;
  // Bound: kSpreadMax.
  std::deque<TraceRequest> group_;
  std::optional<TraceRequest> ahead_;
  absl::Duration moment_;
  int64_t read_ = 0;
};

}  // namespace

std::unique_ptr<WorkloadSource> AdaptArrivals(std::unique_ptr<WorkloadSource> source,
                                              const ArrivalOptions& options) {
  return std::make_unique<AdaptedSource>(std::move(source), options);
}

}  // namespace tandem::sim
