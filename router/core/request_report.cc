#include "router/core/request_report.h"

#include <algorithm>

namespace tandem::router {
namespace {

double MillisecondsBetween(const std::optional<absl::Time>& from,
                           const std::optional<absl::Time>& to) {
  if (!from.has_value() || !to.has_value() || *to < *from) return 0;
  return absl::ToDoubleMilliseconds(*to - *from);
}

}  // namespace

void RequestSteps::OnPlaced(absl::Time now, absl::Duration predicted) {
  if (first_token.has_value()) return;
  placed = now;
  first_token_predicted = predicted;
  reserved.reset();
}

void RequestSteps::OnReserved(absl::Time now) {
  if (!first_token.has_value()) reserved = now;
}

void RequestSteps::OnSenderReplaced() {
  if (!first_token.has_value()) first_token_predicted = absl::ZeroDuration();
}

void RequestSteps::OnToken(absl::Time now) {
  if (!first_token.has_value()) {
    first_token = now;
  } else if (gaps_ms.size() < kTimingGapsMax) {
    gaps_ms.push_back(static_cast<float>(absl::ToDoubleMilliseconds(now - last_token)));
  } else {
    ++gaps_dropped;
  }
  last_token = now;
}

void RequestSteps::OnInstalled(absl::Time now) {
  if (!installed.has_value()) installed = now;
}

v1::Timing RequestSteps::Timing(absl::Time done) const {
  v1::Timing timing;
  timing.set_queue_ms(MillisecondsBetween(submitted, placed.value_or(done)));
  timing.set_reserve_ms(MillisecondsBetween(placed, reserved));
  timing.set_prefill_ms(MillisecondsBetween(reserved, first_token));
  timing.set_first_token_ms(MillisecondsBetween(submitted, first_token));
  if (first_token.has_value())
    timing.set_first_token_predicted_ms(absl::ToDoubleMilliseconds(first_token_predicted));
  timing.set_install_ms(MillisecondsBetween(first_token, installed));
  timing.set_total_ms(MillisecondsBetween(submitted, done));
  timing.mutable_gap_ms()->Add(gaps_ms.begin(), gaps_ms.end());
  timing.set_gaps_dropped(gaps_dropped);
  return timing;
}

void RequestReport::OnStartDecode(const std::string& decode_node) {
  if (reserved_)
    cached_in_earlier_attempts_ = std::min(
        cached_in_earlier_attempts_.value_or(attempt_prompt_tokens_), CachedInThisAttempt());
  route_.Clear();
  route_.set_decode_node(decode_node);
  reserved_ = prefilled_remotely_ = prefill_known_ = decode_known_ = false;
}

void RequestReport::OnReserved(int64_t prompt_tokens, int64_t cached_tokens) {
  reserved_ = true;
  attempt_prompt_tokens_ = prompt_tokens;
  reserved_cached_tokens_ = cached_tokens;
}

void RequestReport::OnPrefill(const std::string& prefill_node) {
  prefilled_remotely_ = true;
  prefill_known_ = false;
  route_.set_prefill_node(prefill_node);
  route_.clear_prefill_tokens();
}

void RequestReport::OnPrefillFinished(const v1::TokensBySource& tokens) {
  prefill_known_ = true;
  *route_.mutable_prefill_tokens() = tokens;
}

void RequestReport::OnInstalled(const v1::Installed& installed) {
  decode_known_ = true;
  *route_.mutable_decode_tokens() = installed.tokens();
  if (prefilled_remotely_ && !prefill_known_ && installed.has_prefill_tokens())
    OnPrefillFinished(installed.prefill_tokens());
  route_.set_kv_bytes_moved(installed.kv_bytes_received());
  route_.set_kv_transfer_ms(installed.kv_transfer_ms());
  route_.set_kv_receive_ms(installed.kv_receive_ms());
  route_.set_kv_hidden_ms(installed.kv_hidden_ms());
  route_.set_kv_beyond_ms(installed.kv_beyond_ms());
  route_.set_transport(installed.transport());
}

v1::Route RequestReport::Route(int32_t attempts) const {
  v1::Route route = route_;
  route.set_attempts(attempts);
  return route;
}

int64_t RequestReport::CachedInThisAttempt() const {
  if (!reserved_) return 0;
  if (prefilled_remotely_ ? !prefill_known_ : !decode_known_) return reserved_cached_tokens_;
  const int64_t computed = (prefill_known_ ? route_.prefill_tokens().computed() : 0) +
                           (decode_known_ ? route_.decode_tokens().computed() : 0);
  return std::clamp<int64_t>(attempt_prompt_tokens_ - computed, 0, attempt_prompt_tokens_);
}

v1::Usage RequestReport::Usage(int32_t prompt_tokens, int32_t output_tokens) const {
  int64_t cached = CachedInThisAttempt();
  if (cached_in_earlier_attempts_.has_value())
    cached =
        reserved_ ? std::min(cached, *cached_in_earlier_attempts_) : *cached_in_earlier_attempts_;
  v1::Usage usage;
  usage.set_prompt_tokens(prompt_tokens);
  usage.set_output_tokens(output_tokens);
  usage.set_cached_tokens(static_cast<int32_t>(std::clamp<int64_t>(cached, 0, prompt_tokens)));
  return usage;
}

}  // namespace tandem::router
