// Predicts how long the queue of sequences that wait for placement takes to drain, so that a client
// that a full queue refuses is told when to ask again.
//
//   time = waiting sequences / (sequences that the fleet takes in a second)
//
// The fleet takes as many as its decode nodes end, and no more than its prefill nodes compute
// prompts for. A decode node ends its running sequences once in an answer's tokens; the nodes' cost
// models say how long a step and a prompt take.
//
// Thread safety: none; RequestTable owns it, on the core's strand.
// Cost: looks at every node, once in kRefreshEvery at most.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "router/fleet/fleet.h"

namespace tandem::router {

class QueueDrain {
 public:
  // The nodes' loads and costs are reported about as often.
  static constexpr absl::Duration kRefreshEvery = absl::Seconds(1);
  static constexpr int64_t kRetrySecondsMax = 60;

  // Seconds until `waiting` sequences have left the queue: at least 1, and at most
  // kRetrySecondsMax and `longest`, how long a sequence may wait. The longest time if no node takes
  // sequences. `mean_prompt_tokens`: of the sequences that wait; called only for a new prediction.
  int64_t RetrySeconds(const Fleet& fleet, int64_t waiting,
                       absl::FunctionRef<double()> mean_prompt_tokens, absl::Duration longest,
                       absl::Time now);

  // Sequences that the fleet takes in a second; 0 if it takes none.
  static double SequencesPerSecond(const Fleet& fleet, double mean_prompt_tokens);

 private:
  double sequences_per_second_ = 0;
  std::optional<absl::Time> predicted_at_;
};

}  // namespace tandem::router
