// Reads a body of Anthropic's POST /v1/messages and /v1/messages/count_tokens. The reader rewrites
// the body as that of a chat and lets ReadChat read it, so that equal conversations become equal
// prompts, whichever API brings them.
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"
#include "router/front_end/model_assets.h"

namespace tandem::router {

struct AnthropicReading {
  absl::Time now;            // what chat templates print as the date
  bool strict = false;       // refuse unknown fields
  bool counts_only = false;  // of count_tokens: no answer, so no max_tokens
};

// The result has one request. kInvalidArgument and kUnimplemented name the field:
// "messages[1].content[0].type: …". REQUIRES: body.is_object().
absl::StatusOr<ApiRequest> ReadAnthropic(const Json& body, const ModelAssets& assets,
                                         const AnthropicReading& reading);

// `status`, whose message begins with a field of a chat, with Anthropic's name of that field. One
// about the model's context has Anthropic's words, which its clients look for.
absl::Status ToAnthropicFieldNames(const absl::Status& status);

}  // namespace tandem::router
