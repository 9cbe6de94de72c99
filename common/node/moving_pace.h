// How many blocks a debtor sends to its creditors between two of its steps. Sending takes a
// processor and the memory's rate from the steps, so it gets a small part of their time. But a node
// that runs out of blocks stands still, so it sends at least what keeps it ahead of that. Nor is a
// loan of use that is not sent in its time: what has been copied for it is lost.
//
// The transfer thread measures what sending costs (transfer::ExportDone).
// Thread safety: none; the engine thread. Owner: Borrower.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/cost/copy_rate.h"

namespace tandem::node {

class MovingPace {
 public:
  static constexpr int32_t kBlocksMax = 16;  // between two steps
  // Of a step's time that sending blocks before it may take.
  static constexpr double kStepShareMax = 0.03;
  // Before the first export has ended: between what TCP and mapped arenas were measured at.
  static constexpr double kFirstBytesPerUs = 4000;

  // Sending `bytes` took `time` of the transfer thread's processor time. Not counted if it is 0 or
  // below.
  void Observe(int64_t bytes, absl::Duration time);

  // What is to be sent, and what room is left meanwhile.
  struct Room {
    int64_t unsent = 0;     // blocks of all loans
    int64_t available = 0;  // blocks that running sequences may still take
    int64_t sequences = 0;  // that run; each takes a block in block_tokens steps
    int64_t block_tokens = 1;
    int64_t due = 0;  // blocks that have to go before this step: BlocksToFinish
  };
  // From 1 to kBlocksMax. `step_us`: the step's predicted time; 0 = nothing is known of it, and as
  // many as possible are sent.
  int32_t BlocksBeforeStep(double step_us, int64_t block_bytes, const Room& room) const;
  // Whether that sends `room.unsent` blocks in so much time.
  bool SendsWithin(absl::Duration time, double step_us, int64_t block_bytes,
                   const Room& room) const;
  // The blocks a step that send `unsent` of them in the time that is left; 0 if nothing is known of
  // a step.
  static int64_t BlocksToFinish(int64_t unsent, absl::Duration left, double step_us);

 private:
  double BlockUs(int64_t block_bytes) const;

  cost::CopyRate rate_;
};

}  // namespace tandem::node
