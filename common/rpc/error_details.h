// An error with what a program can act on: which field is wrong, when to ask again. Wire-compatible
// with google.rpc's rich errors.
// Thread safety: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::rpc {

// Payload of a status: the seconds, in digits, after which a retry makes sense.
inline constexpr absl::string_view kRetryAfterPayload = "tandem/retry-after";

// The request's field that an error's message is about; this project's messages about fields begin
// "field: what is wrong". Empty when it begins otherwise.
absl::string_view FieldOf(absl::string_view message);

// As ToGrpc of common/rpc/status.h, with a BadRequest for kInvalidArgument that names a field, and
// a RetryInfo (the payload's seconds, or a default) for kResourceExhausted and kUnavailable.
grpc::Status ToGrpcWithDetails(const absl::Status& status);

}  // namespace tandem::rpc
