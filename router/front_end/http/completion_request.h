// Reads a body of POST /v1/completions: OpenAI's fields, with vLLM's extra parameters.
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

// The result has one request for each prompt. `strict` refuses unknown fields. kInvalidArgument and
// kUnimplemented name the field: "top_p: …". Ranges of parameters are checked later, with those of
// all front ends (router/front_end/request_validation.h).
// REQUIRES: body.is_object().
absl::StatusOr<ApiRequest> ReadCompletion(const Json& body, bool strict);

}  // namespace tandem::router
