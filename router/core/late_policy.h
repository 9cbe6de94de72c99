// What becomes of a request that is predicted to get its first token later than --ttft-slo says,
// because others are before it.
// Thread safety: values.
#pragma once

#include <array>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem::router {

enum class LatePolicy {
  kServe,   // it waits behind those that can be in time
  kRefuse,  // it is refused, with the time after which to ask again
};

inline constexpr std::array<std::pair<absl::string_view, LatePolicy>, 2> kLatePolicies = {
    {{"serve", LatePolicy::kServe}, {"refuse", LatePolicy::kRefuse}}};

}  // namespace tandem::router
