#include "router/core/queue_deadline_status.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/retry_after.h"
#include "router/core/first_token_goal.h"
#include "router/core/queue_drain.h"

namespace tandem::router {
namespace {

absl::Status StepsTooLongStatus(const std::string& limit, const ServiceTier& tier) {
  std::string most = "other requests there allow";
  if (tier.gap_slo > absl::ZeroDuration())
    most = absl::StrCat(absl::FormatDuration(tier.gap_slo), " (", tier.GoalName("--gap-slo", "gap"),
                        "), or than other requests there allow,");
  return absl::ResourceExhaustedError(
      absl::StrCat("within ", limit, " every decode node's step was predicted to take longer than ",
                   most, " with the request"));
}

}  // namespace

absl::Status QueueDeadlineStatus(const SequenceContext& context, const UnplacedPrompt& prompt,
                                 std::optional<PlacementFailure> failure) {
  const std::string limit = absl::FormatDuration(context.options.queue_deadline);
  if (!context.fleet.decode_node_seen())
    return absl::UnavailableError("no decode node has joined this router");
  switch (failure.value_or(PlacementFailure::kNoRoom)) {
    case PlacementFailure::kNoDecodeNode:
      return absl::UnavailableError(
          absl::StrCat("no decode node accepted work within ", limit,
                       ": all that had joined this router are lost or draining"));
    case PlacementFailure::kNeverFits:
      // No mistake of the client's: such requests are refused on arrival, or once nodes have
      // settled (RouterCore::CheckCapacity). A node that could hold this one drains, or left
      // lately.
      return absl::UnavailableError(absl::StrCat(
          "the request needs ", prompt.tokens_total, " tokens of KV; for ", limit,
          " the decode nodes that take work held ", context.fleet.order().decode_capacity_tokens(),
          " at most: others are lost or draining"));
    case PlacementFailure::kPrefillBusy:
      return absl::ResourceExhaustedError(absl::StrCat(
          "within ", limit, " no prefill node was predicted to begin with ", prompt.tokens,
          " prompt tokens in ", absl::FormatDuration(context.options.prefill_wait_max),
          " (--prefill-wait)"));
    case PlacementFailure::kTooLate:
      return absl::ResourceExhaustedError(absl::StrCat(
          "within ", limit, " no placement was predicted to bring the first token in time"));
    case PlacementFailure::kStepsTooLong:
      return StepsTooLongStatus(limit, prompt.tier);
    case PlacementFailure::kTenantShare:
      return absl::ResourceExhaustedError(
          absl::StrCat("quota: for ", limit,
                       " the tenant's sequences held its share of the KV "
                       "blocks, with no room for ",
                       prompt.tokens, " prompt tokens more"));
    case PlacementFailure::kNoRoom:
    case PlacementFailure::kNotYet:
      break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no decode node had room for ", prompt.tokens, " prompt tokens within ", limit));
}

absl::Status LateRefusalStatus(absl::Duration after, const ServiceTier& tier) {
  const absl::Duration goal = tier.ttft_slo;
  const std::string aim = absl::StrCat("the goal is ", absl::FormatDuration(goal), " (",
                                       tier.GoalName("--ttft-slo", "ttft"), ")");
  if (after <= goal)
    return absl::ResourceExhaustedError(
        absl::StrCat("the first token did not come in time, ", aim));
  const double seconds = absl::ToDoubleSeconds(after - FirstTokenGoal::kAimedShare * goal);
  const double most = static_cast<double>(QueueDrain::kRetrySecondsMax);
  return rpc::WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                                 "the first token is predicted ",
                                 absl::FormatDuration(absl::Trunc(after, absl::Milliseconds(1))),
                                 " after arrival, ", aim)),
                             static_cast<int64_t>(std::ceil(std::clamp(seconds, 1.0, most))));
}

}  // namespace tandem::router
