// DecodeCore's part that ends answers: at a stop token, at a length, or where the constraint says.
// Contract: decode_node/decode_core.h.
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

absl::StatusOr<request::FinishReason> DecodeCore::OnAppended(Leg& leg,
                                                             const node::Sequence& sequence) {
  ++leg.output_tokens;
  if (!sequence.input.matcher.has_value()) return ReasonToFinish(leg, sequence, Progress::kReady);
  const absl::StatusOr<Progress> progress =
      scheduler_.AdvanceConstraint(leg.sequence, sequence.tokens.back());
  if (!progress.ok()) return ReasonDespite(progress.status(), leg, sequence);
  return ReasonToFinish(leg, sequence, *progress);
}

absl::StatusOr<request::FinishReason> DecodeCore::ReasonDespite(
    const absl::Status& fault, const Leg& leg, const node::Sequence& sequence) const {
  if (leg.output_tokens == 0 || !sequence.input.matcher->caught_up()) return fault;
  const request::FinishReason reason = ReasonToFinish(leg, sequence, Progress::kReady);
  if (reason == request::FinishReason::kNone) return fault;
  return reason;
}

request::FinishReason DecodeCore::ReasonToFinish(const Leg& leg, const node::Sequence& sequence,
                                                 Progress progress) const {
  if (progress == Progress::kLater) return request::FinishReason::kNone;
  if (progress == Progress::kWhole) return request::FinishReason::kStop;
  const request::FinishReason reason = request::CheckStop(
      sequence.input.stop, sequence.input.eos_token_ids, sequence.tokens.back(), leg.output_tokens);
  if (reason != request::FinishReason::kNone) return reason;
  return static_cast<int64_t>(sequence.tokens.size()) >= scheduler_.spec().context_tokens
             ? request::FinishReason::kLength
             : request::FinishReason::kNone;
}

void DecodeCore::FollowConstraints() {
  for (const node::ConstraintTurns::Settled& settled : scheduler_.FollowConstraints()) {
    const auto found = by_sequence_.find(settled.id);
    if (found == by_sequence_.end()) continue;
    const Legs::iterator leg = found->second;
    const node::Sequence& sequence = scheduler_.Get(settled.id);
    const absl::StatusOr<request::FinishReason> reason =
        settled.progress.ok() ? ReasonToFinish(leg->second, sequence, *settled.progress)
                              : ReasonDespite(settled.progress.status(), leg->second, sequence);
    if (!reason.ok()) {
      FailRequestAndEnd(leg, reason.status(), "constraint");
    } else if (*reason != request::FinishReason::kNone) {
      Finish(leg, *reason);
    }
  }
}

}  // namespace tandem::decode_node
