// What the API reads in the headers of a request, besides what HTTP itself needs.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

// What a client calls its request (x-request-id), if that can stand in a header and a log: at most
// 128 visible characters; else empty.
std::string GivenRequestId(const HttpRequest& request);

// Whether the body is to be read as JSON. `curl -d` calls every body a form, and other programs say
// nothing of it. Pages of a browser can send both to any server without asking it first, so a form,
// or a body without a type, that has an Origin is none of ours.
bool IsJson(const HttpRequest& request);

// The client's key as an authorization header has it. Anthropic's clients have a header of their
// own for it (x-api-key), which counts where there is no other. Empty: no key.
std::string Authorization(const HttpRequest& request);
// `status` of a key that was refused, whose message begins with "authorization", with the header in
// which the client sent the key, or in which the API's clients send it.
absl::Status NameKeyHeader(const absl::Status& status, const HttpRequest& request);
// kInvalidArgument unless the request has the one Host that HTTP/1.1 demands (RFC 9112, 3.2).
absl::Status CheckOneHost(const HttpRequest& request);

}  // namespace tandem::router
