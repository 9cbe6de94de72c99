#include "router/front_end/http/api_dialect.h"

#include "absl/strings/match.h"
#include "router/front_end/http/json_body.h"

namespace tandem::router {

Dialect DialectOf(absl::string_view path) {
  return absl::StartsWith(path, "/api/") ? Dialect::kOllama : Dialect::kOpenAi;
}

void ErrorForm::Apply(HttpReply& reply) const {
  if (reply.error.empty()) return;
  if (dialect == Dialect::kOllama) reply.body = OllamaErrorJson(reply.error);
}

std::string OllamaErrorJson(absl::string_view message) {
  std::string json = "{\"error\":";
  AppendJsonString(message, json);
  return json + "}";
}

}  // namespace tandem::router
