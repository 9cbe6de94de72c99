// When a refused client should ask again: a payload of a status, which both front ends pass on.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// The type URL of a status's payload that holds the seconds to wait before a retry, in digits.
inline constexpr absl::string_view kRetryAfterPayload = "tandem/retry-after";

inline absl::Status WithRetryAfter(absl::Status status, int64_t seconds) {
  status.SetPayload(kRetryAfterPayload, absl::Cord(absl::StrCat(seconds)));
  return status;
}

}  // namespace tandem::rpc
