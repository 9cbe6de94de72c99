// What the core tells the client of one request.
// Thread safety: values.
// Invariants, for each request: PromptScored, if asked for, comes before any token; each sequence
// gets each token index once and in order, then one SequenceDone; a RequestFailed ends the whole
// request.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

// Log-probabilities of the prompt's tokens from the second token on, if asked for.
struct PromptScored {
  std::vector<v1::GeneratedToken> tokens;
};
// A leg, as v1::Leg numbers it. Number 0: none.
struct LegName {
  uint64_t number = 0;
  uint32_t attempt = 0;

  friend bool operator==(const LegName& a, const LegName& b) {
    return a.number == b.number && a.attempt == b.attempt;
  }
};
// The next tokens of one sequence.
struct TokensReady {
  int32_t sequence_index = 0;
  std::vector<v1::GeneratedToken> tokens;
};
// One sequence is complete. `usage`, `route` and `timing` are final. Only the first sequence's
// usage counts the prompt.
struct SequenceDone {
  int32_t sequence_index = 0;
  bool last = true;  // nothing follows for this request
  request::FinishReason reason = request::FinishReason::kNone;
  // With `last`: as in RequestFailed.
  int64_t computed_tokens = 0;
  v1::Usage usage;
  v1::Route route;
  v1::Timing timing;
  LegName decode_leg;  // the last one; its node may still say what it lent (LentReport)
  // How the nodes of each of its placements were chosen, and of how many placements that is not
  // told. Bound: kPlacementsMax.
  std::vector<std::shared_ptr<const v1::PlacementDecision>> placements;
  int32_t placements_dropped = 0;
};
// The request failed as a whole. Nothing follows.
struct RequestFailed {
  absl::Status status;
  // Tokens that nodes computed for the request: its prompt, if it was ever placed, and what all of
  // its sequences generated, those whose answers the client does not get included (best_of, beams).
  int64_t computed_tokens = 0;
};
using ClientEvent = std::variant<TokensReady, SequenceDone, RequestFailed, PromptScored>;

}  // namespace tandem::router
