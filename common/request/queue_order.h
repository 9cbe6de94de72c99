// In which order a node computes its sequences, and, where their costs are alike
// (common/node/preemption.h), which one it preempts first. Routers predict waits by the same order
// (router/fleet/prompt_work.h). A sequence's rank is the time at which it counts as having arrived;
// an earlier rank goes first. Among sequences of equal priority it is the order in which their
// first tokens are due. A rank never changes, and it is at most kAdvantageMax from the real
// arrival. So no sequence passes one that arrived 2 * kAdvantageMax before it: every wait is
// bounded, as if age raised priority linearly.
// Thread safety: values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::request {

enum class QueueOrder {
  kArrival,  // priorities do not matter
  // By due time. Each level of priority below another counts as kPriorityLevel of waiting.
  kPriority,
  // As kPriority, and a prompt counts as arriving when it could be computed. So of two prompts the
  // one goes first of which less is left to compute, less the time that it has waited.
  kShortestPrompt,
};

// What a level of priority is worth: as --priority-level of a router, unless it is changed there.
inline constexpr absl::Duration kPriorityLevel = absl::Seconds(1);
inline constexpr absl::Duration kAdvantageMax = absl::Seconds(30);
// The time until a first token is due counts up to this; without a due time it counts as this. So
// a due time is worth two thirds of kAdvantageMax at most, and ten levels of priority count beside
// the nearest one.
inline constexpr absl::Duration kDueMax = absl::Seconds(20);

// What a request says of its place.
struct Urgency {
  int32_t priority = 0;  // a lower one is more urgent
  // When its first token is due, counted from its arrival; infinite = no time is set.
  absl::Duration due_within = absl::InfiniteDuration();
};

// `compute_time`: what the uncached part of its prompt takes, as predicted.
inline absl::Time RankOf(QueueOrder order, absl::Time arrived, const Urgency& urgency,
                         absl::Duration compute_time) {
  absl::Duration later;
  if (order != QueueOrder::kArrival) {
    later += urgency.priority * kPriorityLevel;
    if (urgency.due_within != absl::InfiniteDuration())
      later += std::clamp(urgency.due_within, absl::ZeroDuration(), kDueMax) - kDueMax;
  }
  if (order == QueueOrder::kShortestPrompt) later += compute_time;
  return arrived + std::clamp(later, -kAdvantageMax, kAdvantageMax);
}

// "fcfs", "priority" or "shortest-prompt". Errors: kInvalidArgument names the value.
inline absl::StatusOr<QueueOrder> ParseQueueOrder(absl::string_view text) {
  if (text == "fcfs") return QueueOrder::kArrival;
  if (text == "priority") return QueueOrder::kPriority;
  if (text == "shortest-prompt") return QueueOrder::kShortestPrompt;
  return absl::InvalidArgumentError(
      absl::StrCat("queue-order: \"", text, "\", expected fcfs, priority or shortest-prompt"));
}

}  // namespace tandem::request
