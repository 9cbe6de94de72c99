// What a finished request tells its client beside the tokens: when each step happened, which nodes
// served it, and where its prompt's KV came from.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// Gaps between tokens that a request's timing holds; later ones are only counted.
inline constexpr size_t kTimingGapsMax = 4096;

// The steps of one request. A step that a retry repeats keeps its last time until the first token
// is out; from then on only `installed` may still be set.
struct RequestSteps {
  absl::Time submitted = absl::InfinitePast();
  std::optional<absl::Time> placed, reserved, first_token, installed;
  // Bound: kTimingGapsMax.
  std::vector<float> gaps_ms;
  int32_t gaps_dropped = 0;
  absl::Time last_token = absl::InfinitePast();

  void OnPlaced(absl::Time now);
  void OnReserved(absl::Time now);
  // A token came.
  void OnToken(absl::Time now);
  void OnInstalled(absl::Time now);
  v1::Timing Timing(absl::Time done) const;
};

class RequestReport {
 public:
  // A new decode placement: what the last one said about sources no longer describes the answer.
  void OnRun(const std::string& decode_node);
  void OnReserved(int64_t prompt_tokens, int64_t cached_tokens);
  void OnPrefill(const std::string& prefill_node);
  void OnPrefillFinished(const v1::TokensBySource& tokens);
  void OnInstalled(const v1::Installed& installed);

  v1::Route Route(int32_t attempts) const;
  // `prompt_tokens` as the client sent them. Cached tokens are the prompt less what any node
  // computed, in the worst of the attempts; until a node says what it computed, all but what the
  // decode node held.
  v1::Usage Usage(int32_t prompt_tokens, int32_t output_tokens) const;

 private:
  int64_t CachedInThisAttempt() const;

  v1::Route route_;
  bool prefilled_remotely_ = false;
  bool prefill_known_ = false, decode_known_ = false;
  int64_t attempt_prompt_tokens_ = 0;
  int64_t reserved_cached_tokens_ = 0;
  std::optional<int64_t> cached_in_earlier_attempts_;
  bool reserved_ = false;
};

}  // namespace tandem::router
