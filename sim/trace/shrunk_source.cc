#include "sim/trace/shrunk_source.h"

#include <utility>

#include "common/base/status_macros.h"

namespace tandem::sim {
namespace {

class ShrunkSource final : public WorkloadSource {
 public:
  ShrunkSource(std::unique_ptr<WorkloadSource> source, int32_t shrink)
      : source_(std::move(source)), shrink_(shrink) {}

  absl::StatusOr<std::optional<TraceRequest>> Next() override {
    ASSIGN_OR_RETURN(std::optional<TraceRequest> request, source_->Next());
    if (request.has_value()) request->prompt_tokens = ShrunkTokens(request->prompt_tokens, shrink_);
    return request;
  }

 private:
  const std::unique_ptr<WorkloadSource> source_;
  const int32_t shrink_;
};

}  // namespace

std::unique_ptr<WorkloadSource> ShrinkPrompts(std::unique_ptr<WorkloadSource> source,
                                              int32_t shrink) {
  return std::make_unique<ShrunkSource>(std::move(source), shrink);
}

}  // namespace tandem::sim
