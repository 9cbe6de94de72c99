#include "router/front_end/http/openapi.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/version.h"
#include "router/front_end/http/api_dialect.h"

namespace tandem::router {
namespace {

constexpr char kAbout[] =
    "A Tandem router's HTTP API: OpenAI's, Anthropic's and Ollama's endpoints, vLLM's for tokens "
    "and probes, and the state of the cluster. Fields that are null count as absent. Unknown "
    "fields are ignored unless `strict` "
    "is true.";

// Whether a part of a route's path stands for any text.
bool IsName(absl::string_view part) { return !part.empty() && absl::ascii_isupper(part[0]); }

std::string TemplatedPath(absl::string_view path) {
  std::vector<std::string> parts;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    parts.push_back(IsName(part) ? absl::StrCat("{", absl::AsciiStrToLower(part), "}")
                                 : std::string(part));
  }
  return absl::StrJoin(parts, "/");
}

Json PathParameters(absl::string_view path) {
  Json parameters = Json::array();
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (!IsName(part)) continue;
    parameters.push_back({{"name", absl::AsciiStrToLower(part)},
                          {"in", "path"},
                          {"required", true},
                          {"schema", {{"type", "string"}}}});
  }
  return parameters;
}

// "get" and "/v1/models": "get_v1_models". Generators of client code name functions so.
std::string OperationId(absl::string_view method, absl::string_view path) {
  std::string id(method);
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (!part.empty()) absl::StrAppend(&id, "_", absl::AsciiStrToLower(part));
  }
  for (char& c : id) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return id;
}

Json SchemaRef(absl::string_view name) {
  return {{"$ref", absl::StrCat("#/components/schemas/", name)}};
}

Json JsonContent(absl::string_view schema) {
  return {{"application/json", {{"schema", SchemaRef(schema)}}}};
}

Json ReplyContent(const RouteNote& note) {
  const absl::string_view reply = note.reply;
  const Json text = {{"schema", {{"type", "string"}}}};
  if (reply == "text") return {{"text/plain", text}};
  if (reply == "file") {
    return {{"text/html", text},
            {"text/css", text},
            {"text/javascript", text},
            {"image/svg+xml", text}};
  }
  if (reply == "html") return {{"text/html", text}};
  // Some paths answer a browser with a page and programs with JSON.
  if (reply == "VersionOrPage") {
    Json content = JsonContent("Version");
    content["text/html"] = text;
    return content;
  }
  Json content = JsonContent(reply);
  if (note.streams) content["text/event-stream"] = text;
  if (reply == "OllamaLine") content["application/x-ndjson"] = text;
  return content;
}

// Each API has its own form for an error.
absl::string_view ErrorOf(absl::string_view path) {
  switch (DialectOf(path)) {
    case Dialect::kOllama:
      return "OllamaError";
    case Dialect::kAnthropic:
      return "AnthropicError";
    case Dialect::kOpenAi:
      break;
  }
  return "Error";
}

Json Operation(const DescribedRoute& route, absl::string_view method, bool keys) {
  const RouteNote& note = route.note;
  const bool deletes = method == "delete";
  Json operation = {{"operationId", OperationId(method, route.path)},
                    {"summary", deletes ? note.delete_summary : note.summary},
                    {"tags", Json::array({note.group})}};
  const Json parameters = PathParameters(route.path);
  if (!parameters.empty()) operation["parameters"] = parameters;
  if (method == "post" && *note.body != '\0') {
    operation["requestBody"] = {{"required", true}, {"content", JsonContent(note.body)}};
  }
  operation["responses"]["200"] = {{"description", "the answer"}, {"content", ReplyContent(note)}};
  operation["responses"]["default"] = {{"description", "an error; 4xx names the field at fault"},
                                       {"content", JsonContent(ErrorOf(route.path))}};
  if (route.may_shed) {
    operation["responses"]["503"] = {
        {"description", "no node serves, or the router drains or is overloaded"},
        {"headers", {{"retry-after", {{"schema", {{"type", "integer"}}}}}}},
        {"content", JsonContent(ErrorOf(route.path))}};
  }
  if (route.needs_key && keys) {
    operation["security"] = Json::array({Json{{"key", Json::array()}}});
    operation["responses"]["401"] = {{"description", "no known API key"},
                                     {"content", JsonContent(ErrorOf(route.path))}};
  }
  return operation;
}

}  // namespace

Json OpenApiDocument(absl::Span<const DescribedRoute> routes, bool keys) {
  Json document = {{"openapi", "3.1.0"},
                   {"info",
                    {{"title", "Tandem"},
                     {"version", std::string(kVersion)},
                     {"description", kAbout},
                     {"license", {{"name", "Apache License 2.0"}, {"identifier", "Apache-2.0"}}}}},
                   {"servers", Json::array({Json{{"url", "/"}}})},
                   {"paths", Json::object()}};
  for (const DescribedRoute& route : routes) {
    Json& path = document["paths"][TemplatedPath(route.path)];
    for (const absl::string_view listed : absl::StrSplit(route.methods, ", ")) {
      if (listed == "HEAD") continue;  // GET without a body
      const std::string method = absl::AsciiStrToLower(listed);
      path[method] = Operation(route, method, keys);
    }
  }
  document["components"]["schemas"] = OpenApiSchemas();
  if (keys) {
    document["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  }
  return document;
}

}  // namespace tandem::router
