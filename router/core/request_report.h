// What the client of a finished request gets beside the tokens: when each step happened, which
// nodes served the request, and where its prompt's KV came from. What nodes say is bounded before
// it comes here (router/core/leg_report.h). Thread safety: values; a SequenceAnswer owns them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// Gaps between tokens that the timing lists; later ones are only counted.
inline constexpr size_t kTimingGapsMax = 4096;
// Placements whose decisions are kept; later ones are only counted.
inline constexpr size_t kPlacementsMax = 32;

// When the steps of one request happened. Until the first token, a retry overwrites the times of
// the steps that it repeats. After it, only `installed` may still be set.
struct RequestSteps {
  absl::Time submitted = absl::InfinitePast();
  std::optional<absl::Time> placed, reserved, first_token, installed;
  absl::Duration first_token_predicted;  // from `placed`; 0 = nothing that still holds
  // Bound: kTimingGapsMax.
  std::vector<float> gaps_ms;
  int32_t gaps_dropped = 0;
  absl::Time last_token = absl::InfinitePast();

  // `predicted`: when the first token will come, from now; 0 = unknown.
  void OnPlaced(absl::Time now, absl::Duration predicted);
  void OnReserved(absl::Time now);
  // Another node than the predicted one sends the first token: it is not to blame for its time.
  void OnSenderReplaced();
  // A token came.
  void OnToken(absl::Time now);
  void OnInstalled(absl::Time now);
  v1::Timing Timing(absl::Time done) const;
};

class RequestReport {
 public:
  // A new decode leg starts: the sources that the last one reported no longer describe the answer.
  void OnStartDecode(const std::string& decode_node);
  // How the nodes of that leg and of its prompt were chosen.
  void AddPlacement(std::shared_ptr<const v1::PlacementDecision> decision) {
    if (placements_.size() < kPlacementsMax)
      placements_.push_back(std::move(decision));
    else
      ++placements_dropped_;
  }
  using Placements = std::vector<std::shared_ptr<const v1::PlacementDecision>>;
  const Placements& placements() const { return placements_; }
  int32_t placements_dropped() const { return placements_dropped_; }
  void OnReserved(int64_t prompt_tokens, int64_t cached_tokens);
  void OnPrefill(const std::string& prefill_node);
  void OnPrefillFinished(const v1::TokensBySource& tokens);
  void OnInstalled(const v1::Installed& installed);
  // What the leg's loans were.
  void OnLent(const v1::LentUse& lent) { *route_.mutable_lent() = lent; }

  v1::Route Route(int32_t attempts) const;
  // `prompt_tokens`: of the prompt as the client sent it. Cached tokens are the prompt minus what
  // nodes computed, in the attempt that computed most. Until a node reports what it computed, they
  // are the tokens that the decode node held.
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
  // Of all attempts, refused ones included: a sequence may be refused until its queue deadline.
  // Bound: kPlacementsMax.
  Placements placements_;
  int32_t placements_dropped_ = 0;
};

}  // namespace tandem::router
