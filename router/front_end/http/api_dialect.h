// The APIs that a router speaks over HTTP, and the form that each has for an error. Handlers make
// errors in OpenAI's form (openai_error.h); what leaves the router is worded here once, so that a
// refusal on any path, whether for a key, a field or an overload, has the form its client reads.
// Thread safety: pure functions and a value.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/http_message.h"

namespace tandem::router {

enum class Dialect { kOpenAi, kOllama, kAnthropic };

// The header by which Anthropic's clients say which version of its API they speak.
inline constexpr char kAnthropicVersion[] = "anthropic-version";

// The API that a path belongs to: /api/… is Ollama's, /v1/messages and what is below it are
// Anthropic's, all else is OpenAI's.
Dialect DialectOf(absl::string_view path);
// The same of a request: the models of /v1/models are Anthropic's for who names its version.
Dialect DialectOf(const HttpRequest& request);

// Words the errors of one request.
struct ErrorForm {
  Dialect dialect = Dialect::kOpenAi;
  std::string request_id;

  // Rewrites the body of a refusal; other replies stay as they are.
  void Apply(HttpReply& reply) const;
};

// Ollama's error, as a reply's body and as a line of a stream: {"error":"…"}.
std::string OllamaErrorJson(absl::string_view message);
// Anthropic's error, as a reply's body and as an event of a stream: {"type":"error","error":{…}}.
// An empty `request_id` is left out.
std::string AnthropicErrorJson(int http_status, absl::string_view message,
                               absl::string_view request_id);

}  // namespace tandem::router
