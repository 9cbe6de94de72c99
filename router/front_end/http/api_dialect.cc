#include "router/front_end/http/api_dialect.h"

#include "absl/strings/match.h"
#include "router/front_end/json_body.h"

namespace tandem::router {
namespace {

const char* AnthropicErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status < 499 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

Dialect DialectOf(absl::string_view path) {
  if (absl::StartsWith(path, "/api/")) return Dialect::kOllama;
  const bool messages = path == "/v1/messages" || absl::StartsWith(path, "/v1/messages/");
  return messages ? Dialect::kAnthropic : Dialect::kOpenAi;
}

Dialect DialectOf(const HttpRequest& request) {
  const absl::string_view path = request.path;
  const bool models = path == "/v1/models" || absl::StartsWith(path, "/v1/models/");
  return models && !request.Header(kAnthropicVersion).empty() ? Dialect::kAnthropic
                                                              : DialectOf(path);
}

void ErrorForm::Apply(HttpReply& reply) const {
  if (reply.error.empty()) return;
  if (dialect == Dialect::kOllama) reply.body = OllamaErrorJson(reply.error);
  if (dialect == Dialect::kAnthropic) {
    reply.body = AnthropicErrorJson(reply.status, reply.error, request_id);
  }
}

std::string OllamaErrorJson(absl::string_view message) {
  std::string json = "{\"error\":";
  AppendJsonString(message, json);
  return json + "}";
}

std::string AnthropicErrorJson(int http_status, absl::string_view message,
                               absl::string_view request_id) {
  Json json = {
      {"type", "error"},
      {"error", {{"type", AnthropicErrorType(http_status)}, {"message", std::string(message)}}}};
  if (!request_id.empty()) json["request_id"] = std::string(request_id);
  return JsonText(json);
}

}  // namespace tandem::router
