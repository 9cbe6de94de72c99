#include "router/front_end/access_record.h"

#include <cmath>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/telemetry/log.h"

namespace tandem::router {
namespace {

absl::string_view ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORTED:
      return "abort";
    default:
      return "error";
  }
}

// To a tenth of a millisecond.
double Rounded(double ms) { return std::round(ms * 10) / 10; }

}  // namespace

void AccessRecord::OnFinished(const v1::Finished& finished) {
  cached_tokens_ += finished.usage().cached_tokens();
  output_tokens_ += finished.usage().output_tokens();
  reason_ = finished.reason();
  ++answers_;
}

void AccessRecord::OnSequence(int32_t index, const v1::Route& route, const v1::Timing& timing) {
  if (index_ >= 0 && std::pair(queue_ms_, index_) <= std::pair(timing.queue_ms(), index)) return;
  index_ = index;
  route_ = route;
  queue_ms_ = timing.queue_ms();
  first_token_ms_ = timing.first_token_ms();
}

void AccessRecord::Write(const absl::Status& status, absl::Duration total) const {
  const v1::TokensBySource& tokens =
      route_.prefill_node().empty() ? route_.decode_tokens() : route_.prefill_tokens();
  Log(LogLevel::kInfo, "request ended",
      {{"request_id", request_id_},
       {trace_id_.empty() ? "" : "trace_id", trace_id_},
       {"front_end", front_end_},
       {"service_tier", service_tier_},
       {"status", absl::StatusCodeToString(status.code())},
       {"reason", ReasonName(reason_)},
       {"prompt_tokens", prompt_tokens_},
       {"cached_tokens", cached_tokens_},
       {tokens.from_host_memory() > 0 ? "host_memory_tokens" : "", tokens.from_host_memory()},
       {tokens.from_disk() > 0 ? "disk_tokens" : "", tokens.from_disk()},
       {tokens.fetched() > 0 ? "fetched_tokens" : "", tokens.fetched()},
       {"output_tokens", output_tokens_},
       {"answers", answers_},
       {"queue_ms", Rounded(queue_ms_)},
       {"first_token_ms", Rounded(first_token_ms_)},
       {"total_ms", Rounded(absl::ToDoubleMilliseconds(total))},
       {route_.prefill_node().empty() ? "" : "prefill", route_.prefill_node()},
       {route_.decode_node().empty() ? "" : "decode", route_.decode_node()},
       {"attempts", route_.attempts()}});
}

}  // namespace tandem::router
