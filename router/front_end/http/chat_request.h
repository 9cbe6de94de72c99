// Reads a body of POST /v1/chat/completions: OpenAI's fields, with vLLM's extra parameters.
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

// The result has one request, whose prompt is the rendered conversation as token ids. `now` is what
// chat templates print as the date. `strict` refuses unknown fields. kInvalidArgument and
// kUnimplemented name the field: "messages[1].role: …".
// REQUIRES: body.is_object().
absl::StatusOr<ApiRequest> ReadChat(const Json& body, const ModelAssets& assets, absl::Time now,
                                    bool strict);

}  // namespace tandem::router
