// Errors with details that a client program can act on: which field is wrong, and when to retry.
// Wire-compatible with google.rpc's rich error model.
// Thread safety: pure functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/rpc/retry_after.h"

namespace tandem::rpc {

// The request's field that an error message is about: this project's messages about a field begin
// "field: what is wrong". Empty when the message begins otherwise.
absl::string_view FieldOf(absl::string_view message);

// Converts as ToGrpc (common/rpc/status.h) does, and adds details: a BadRequest to a
// kInvalidArgument that names a field, and a RetryInfo (the seconds of kRetryAfterPayload, or one
// second) to kResourceExhausted and kUnavailable.
grpc::Status ToGrpcWithDetails(const absl::Status& status);

}  // namespace tandem::rpc
