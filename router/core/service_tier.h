// A service tier: how soon its requests' tokens are wanted, and what becomes of those that would
// come too late. Every request belongs to one. Operators name tiers by --service-tiers
// (router/core/service_tiers.h), and clients ask for one by name; the goals of the tier
// "default" are flags of their own.
//
// Goals decide who waits, never what an answer is. The first token: requests whose goal is in reach
// come before all others, the earliest first. The gaps: see `gap_slo`.
//
// Thread safety: a value.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::router {

enum class LatePolicy {
  kServe,   // it waits behind those that can be in time
  kRefuse,  // it is refused, with the time after which to ask again
};

inline constexpr std::array<std::pair<absl::string_view, LatePolicy>, 2> kLatePolicies = {
    {{"serve", LatePolicy::kServe}, {"refuse", LatePolicy::kRefuse}}};

inline constexpr absl::string_view kDefaultTier = "default";

struct ServiceTier {
  std::string name = std::string(kDefaultTier);
  // A request whose first token cannot come within this time any more waits behind those whose can;
  // 0 = no goal: it waits behind those that have one, in the order in which it came.
  absl::Duration ttft_slo;
  // What becomes of those that would be late.
  LatePolicy late = LatePolicy::kServe;
  // A sequence is not placed where a decode node's step with it is predicted to take longer than
  // this, unless nothing runs there; nor is any other sequence, while this one runs there. 0 =
  // steps may take any time.
  absl::Duration gap_slo;
  // Added to the priorities of its requests.
  int32_t priority = 0;

  // The longest step of a decode node that its sequences allow.
  absl::Duration StepWithin() const {
    return gap_slo > absl::ZeroDuration() ? gap_slo : absl::InfiniteDuration();
  }
  // Whether a request was in time: its first token came within the goal for it, and the mean gap
  // between its answers' tokens is within the goal for gaps. `gaps`: the sum of `count` gaps.
  bool InTime(absl::Duration first_token, absl::Duration gaps, int64_t count) const {
    const absl::Duration none = absl::ZeroDuration();
    if (ttft_slo > none && first_token > ttft_slo) return false;
    return gap_slo <= none || gaps <= gap_slo * count;
  }
  // Names a goal for a client: the flag, or the setting of its tier.
  std::string GoalName(absl::string_view flag, absl::string_view setting) const {
    return name == kDefaultTier ? std::string(flag)
                                : absl::StrCat(setting, " of service tier ", name);
  }
};

}  // namespace tandem::router
