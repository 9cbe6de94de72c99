// Writes errors in the form of OpenAI's API: {"error": {"message", "type", "param", "code"}}.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// The HTTP status of an error. kUnimplemented becomes 400, because the client can leave the field
// out.
int HttpStatusOf(const absl::Status& status);
// The error object alone, for the middle of a stream.
std::string ErrorJson(int http_status, const absl::Status& status);
// A whole reply. With 429 and 503 a header says when to try again.
HttpReply ErrorReply(const absl::Status& status);
HttpReply ErrorReply(int http_status, const std::string& message);

}  // namespace tandem::router
