#include "common/node/constraint_turns.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace tandem::node {

absl::StatusOr<ConstraintTurns::Progress> ConstraintTurns::Advance(Sequence& sequence,
                                                                   TokenId token) {
  // It waits already if a part of the answer that was generated elsewhere is not read yet.
  const bool waits = sequence.awaits_constraint();
  sequence.input.matcher->Defer(absl::MakeConstSpan(&token, 1));
  sequence.verdict_due = true;
  if (waits) return Progress::kLater;
  // A costly one waits for Run, which serves others first.
  absl::StatusOr<Progress> progress = Progress::kLater;
  if (sequence.constraint_work <= kPieceMax) progress = Serve(sequence, left());
  if (progress.ok() && *progress == Progress::kLater) Add(sequence.id);
  return progress;
}

absl::StatusOr<ConstraintTurns::Progress> ConstraintTurns::Serve(Sequence& sequence,
                                                                 uint64_t work_max) {
  const uint64_t before = work_;
  absl::StatusOr<Progress> progress = GetReady(sequence, work_max);
  const bool waits = progress.ok() && *progress == Progress::kLater;
  if (work_ > before || !waits) sequence.constraint_work = work_ - before;
  return progress;
}

absl::StatusOr<ConstraintTurns::Progress> ConstraintTurns::GetReady(Sequence& sequence,
                                                                    uint64_t work_max) {
  guided::Matcher& matcher = *sequence.input.matcher;
  const uint64_t before = work_;
  ASSIGN_OR_RETURN(const bool caught_up, matcher.CatchUp(std::min(work_max, kPieceMax), work_));
  if (!caught_up) return Progress::kLater;
  if (sequence.verdict_due && (matcher.ended() || matcher.complete())) {
    sequence.verdict_due = false;
    return Progress::kWhole;
  }
  ASSIGN_OR_RETURN(const bool ready,
                   matcher.PrepareMask(/*compute=*/work_ - before < work_max, work_));
  if (!ready) return Progress::kLater;
  sequence.verdict_due = false;
  RETURN_IF_ERROR(CheckNextToken(sequence.input));
  return Progress::kReady;
}

std::vector<ConstraintTurns::Settled> ConstraintTurns::Run(
    absl::FunctionRef<Sequence*(SequenceId)> find) {
  std::erase_if(waiting_, [&](SequenceId id) { return find(id) == nullptr; });
  if (waiting_.empty()) return {};
  std::vector<Sequence*> by_work;
  for (const SequenceId id : waiting_) by_work.push_back(find(id));
  Sequence* const longest = by_work.front();
  std::stable_sort(by_work.begin(), by_work.end(), [](const Sequence* a, const Sequence* b) {
    return a->constraint_work < b->constraint_work;
  });
  std::vector<Settled> settled;
  bool longest_served = false;
  const auto serve = [&](Sequence& sequence, uint64_t work_max) {
    const uint64_t before = work_;
    const bool verdict_due = sequence.verdict_due;
    absl::StatusOr<Progress> progress = Serve(sequence, work_max);
    const bool waits = progress.ok() && *progress == Progress::kLater;
    if (&sequence == longest) longest_served = work_ > before || !waits;
    if (waits) return;
    std::erase(waiting_, sequence.id);
    settled.push_back({sequence.id, std::move(progress), verdict_due});
  };
  for (Sequence* const sequence : by_work) serve(*sequence, left());
  if (!longest_served) serve(*longest, kPieceMax);
  if (longest_served && !waiting_.empty() && waiting_.front() == longest->id) {
    waiting_.pop_front();
    waiting_.push_back(longest->id);
  }
  return settled;
}

}  // namespace tandem::node
