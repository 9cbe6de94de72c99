// Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// HTTP's status for one of ours. What is not served is the client's to change: 400.
int HttpStatusOf(const absl::Status& status);
// The error object alone, for the middle of a stream.
std::string ErrorJson(int http_status, const absl::Status& status);
// A whole reply; 429 and 503 say when to try again.
HttpReply ErrorReply(const absl::Status& status);
HttpReply ErrorReply(int http_status, const std::string& message);

}  // namespace tandem::router
