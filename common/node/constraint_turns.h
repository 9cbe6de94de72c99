// Lets the constraints of a node's sequences read tokens and compute masks, a bounded amount of
// work between two steps, whatever the constraints are and however much was generated elsewhere. A
// sequence whose constraint has more to do takes no part in steps until it is ready; the others go
// on.
//
// Those whose last turn took least are served first, so that costly constraints do not delay cheap
// ones. Who has waited for longest is served in any case.
// Work is counted as StateGraph::work; a million takes some milliseconds of a core.
// Thread safety: none; the engine thread. Owner: the SequenceScheduler.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/guided/token_mask.h"
#include "common/node/sequence.h"

namespace tandem::node {

class ConstraintTurns {
 public:
  // Once this is done since Begin, constraints wait, but for the one that has waited for longest.
  static constexpr uint64_t kWorkMax = 500'000;
  // What one turn may take for deferred tokens.
  static constexpr uint64_t kPieceMax = 125'000;
  // The last token or mask may exceed both by this. So Run and Advance take at most kWorkMax,
  // kPieceMax and twice this since Begin.
  static constexpr uint64_t kExcessMax = guided::kMaskWorkMax + guided::kCloseWorkMax;

  enum class Progress {
    kReady,  // a token may come next
    kWhole,  // the output token completed the answer: the sequence sits out steps from now on
    kLater,  // the sequence waits for its next turn
  };
  // What became of a sequence that waited.
  struct Settled {
    SequenceId id;
    absl::StatusOr<Progress> progress;  // as Advance's, never kLater
    bool verdict_due = false;           // as the sequence's was
  };

  // There is time again.
  void Begin() { work_ = 0; }
  // The constraint shall read `token`, an output token, and get ready for the next. On kLater the
  // sequence waits for Run. Errors: kInvalidArgument when the constraint forbids a token; as
  // CheckNextToken. REQUIRES: it has a constraint.
  absl::StatusOr<Progress> Advance(Sequence& sequence, TokenId token);
  // The sequence, which has a constraint that is not ready, waits for Run.
  void Add(SequenceId id) { waiting_.push_back(id); }
  // Serves those that wait. `find` gives the sequence of an id, or null for one that has no use for
  // its constraint any more. Returns those that wait no longer.
  std::vector<Settled> Run(absl::FunctionRef<Sequence*(SequenceId)> find);
  // Whether a sequence waits.
  bool any() const { return !waiting_.empty(); }
  // Since Begin.
  uint64_t work() const { return work_; }

 private:
  uint64_t left() const { return work_ < kWorkMax ? kWorkMax - work_ : 0; }
  // One turn, which ends once it has taken `work_max`.
  absl::StatusOr<Progress> Serve(Sequence& sequence, uint64_t work_max);
  absl::StatusOr<Progress> GetReady(Sequence& sequence, uint64_t work_max);

  uint64_t work_ = 0;
  // Bound: the sequences, each once; those that were released leave at the next Run.
  std::deque<SequenceId> waiting_;
};

}  // namespace tandem::node
