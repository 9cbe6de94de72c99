// The paths of the HTTP API, one row each, and how a request's path is looked up among them.
// Contract: router/front_end/http/http_api.h.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/http/request_headers.h"

namespace tandem::router {
namespace {

constexpr char kOneModelPath[] = "/v1/models/NAME";
constexpr char kOneTracePath[] = "/traces/ID";
constexpr char kPageFilePath[] = "/page/NAME";
constexpr char kResponsesPath[] = "/v1/responses";
constexpr char kInputTokensPath[] = "/v1/responses/input_tokens";
constexpr char kKeptResponsePath[] = "/v1/responses/ID";
constexpr char kCancelResponsePath[] = "/v1/responses/ID/cancel";
// An endpoint of OpenAI's that is not served. It is no response's id.
constexpr char kCompactPath[] = "/v1/responses/compact";

// The path under which the table has this one: names and ids are no part of it.
absl::string_view RoutePath(absl::string_view path) {
  if (absl::StartsWith(path, "/v1/models/")) return kOneModelPath;
  if (absl::StartsWith(path, "/traces/")) return kOneTracePath;
  if (absl::StartsWith(path, "/page/")) return kPageFilePath;
  if (path == kInputTokensPath || path == kCompactPath ||
      !absl::StartsWith(path, absl::StrCat(kResponsesPath, "/"))) {
    return path;
  }
  const absl::string_view rest = path.substr(sizeof(kResponsesPath));
  if (absl::EndsWith(rest, "/cancel")) return kCancelResponsePath;
  return absl::StrContains(rest, '/') ? path : kKeptResponsePath;
}

}  // namespace

const HttpApi::Route HttpApi::kRoutes[] = {
    {"/v1/completions",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::Completions,
     {"Answers", "Completes prompts.", "CompletionRequest", "Completion", true}},
    {"/v1/chat/completions",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::ChatCompletions,
     {"Answers", "Answers a conversation.", "ChatRequest", "ChatCompletion", true}},
    {kResponsesPath,
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::Responses,
     {"Answers", "Answers items, and keeps the response.", "ResponseRequest", "Response", true}},
    {kInputTokensPath,
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::InputTokens,
     {"Answers", "Counts the tokens of such a request's prompt.", "ResponseRequest",
      "InputTokens"}},
    {kKeptResponsePath,
     "GET, HEAD, DELETE",
     Where::kClients,
     Needs::kKey,
     &HttpApi::KeptResponse,
     {"Answers", "Returns a response that this router keeps.", "", "KeptResponse", false,
      "Deletes a response that this router keeps."}},
    {kCancelResponsePath,
     "POST",
     Where::kClients,
     Needs::kKey,
     &HttpApi::CancelResponse,
     {"Answers", "Always an error: a response that is kept has ended.", "", "KeptResponse"}},
    {"/v1/messages",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::Messages,
     {"Anthropic", "Answers messages.", "MessagesRequest", "Message", true}},
    {"/v1/messages/count_tokens",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::CountTokens,
     {"Anthropic", "Counts the tokens of such a request's prompt.", "MessagesRequest",
      "InputTokens"}},
    {"/api/chat",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::OllamaChat,
     {"Ollama", "Answers a conversation, as lines of JSON.", "OllamaChatRequest", "OllamaLine"}},
    {"/api/generate",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::OllamaGenerate,
     {"Ollama", "Completes a prompt, as lines of JSON.", "OllamaGenerateRequest", "OllamaLine"}},
    {"/api/show",
     "POST",
     Where::kClients,
     Needs::kKey,
     &HttpApi::OllamaShow,
     {"Ollama", "Describes a model that is served.", "OllamaShowRequest", "OllamaModel"}},
    {"/api/tags",
     "GET, HEAD",
     Where::kClients,
     Needs::kKey,
     &HttpApi::OllamaTags,
     {"Ollama", "Lists what is served.", "", "OllamaModels"}},
    {"/api/ps",
     "GET, HEAD",
     Where::kClients,
     Needs::kKey,
     &HttpApi::OllamaRunning,
     {"Ollama", "Lists what is loaded.", "", "OllamaModels"}},
    {"/api/version",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::OllamaVersion,
     {"Ollama", "The version of Ollama whose API this is, and the program's.", "",
      "OllamaVersion"}},
    {"/props",
     "GET, HEAD",
     Where::kClients,
     Needs::kKey,
     &HttpApi::LlamaCppProperties,
     {"Models", "What llama.cpp's clients ask first: context, template, defaults.", "",
      "Properties"}},
    {"/tokenize",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::Tokenize,
     {"Tokens", "Turns a text or a conversation into token ids.", "TokenizeRequest", "Tokens"}},
    {"/detokenize",
     "POST",
     Where::kClients,
     Needs::kTime,
     &HttpApi::Detokenize,
     {"Tokens", "Turns token ids into text.", "DetokenizeRequest", "Prompt"}},
    {"/v1/models",
     "GET, HEAD",
     Where::kClients,
     Needs::kKey,
     &HttpApi::Models,
     {"Models", "Lists what is served.", "", "ModelList"}},
    {kOneModelPath,
     "GET, HEAD",
     Where::kClients,
     Needs::kKey,
     &HttpApi::OneModel,
     {"Models", "Describes a model that is served.", "", "Model"}},
    {"/status",
     "GET, HEAD",
     Where::kOperators,
     Needs::kKey,
     &HttpApi::ClusterStatus,
     {"Cluster", "Nodes, their load and blocks, and KV transfers between them.", "",
      "ClusterStatus"}},
    {"/traces",
     "GET, HEAD",
     Where::kOperators,
     Needs::kKey,
     &HttpApi::Traces,
     {"Cluster", "Lists the key's last finished requests, newest first.", "", "Traces"}},
    {kOneTracePath,
     "GET, HEAD",
     Where::kOperators,
     Needs::kKey,
     &HttpApi::OneTrace,
     {"Cluster", "Tells how a finished request was served.", "", "Trace"}},
    {"/health",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Health,
     {"Probes", "200 while a decode node is ready and the router does not drain.", "", "State"}},
    {"/ping",
     "GET, HEAD, POST",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Health,
     {"Probes", "The same as /health.", "", "State"}},
    {"/ready",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Ready,
     {"Probes", "The same as /health.", "", "State"}},
    {"/live",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Live,
     {"Probes", "200 while the router's core works.", "", "State"}},
    {"/load",
     "GET, HEAD",
     Where::kOperators,
     Needs::kNothing,
     &HttpApi::Load,
     {"Probes", "Counts the requests that are answered or wait.", "", "Load"}},
    {"/metrics",
     "GET, HEAD",
     Where::kOperators,
     Needs::kNothing,
     &HttpApi::Metrics,
     {"Probes", "Counters in the text format of Prometheus.", "", "text"}},
    {"/drain",
     "POST",
     Where::kAdminAlone,
     Needs::kKey,
     &HttpApi::Drain,
     {"Cluster", "Refuses new requests from now on, and lets running ones end.", "", "Drain"}},
    {"/version",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Version,
     {"Probes", "The program's version.", "", "Version"}},
    {"/",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Root,
     {"Page", "The web page for browsers (accept: text/html), the version for others.", "",
      "VersionOrPage"}},
    {kPageFilePath,
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::PageFileNamed,
     {"Page", "A file of the web page.", "", "file"}},
    {"/docs",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::Docs,
     {"Page", "This description as a page.", "", "html"}},
    {"/openapi.json",
     "GET, HEAD",
     Where::kBoth,
     Needs::kNothing,
     &HttpApi::OpenApi,
     {"Page", "This description.", "", "Document"}},
};

bool HttpApi::ServesAt(const Route& route, Port port, bool has_admin_port) {
  switch (route.where) {
    case Where::kClients:
      return port == Port::kClients;
    case Where::kOperators:
      return port == Port::kAdmin || !has_admin_port;
    case Where::kAdminAlone:
      return port == Port::kAdmin;
    case Where::kBoth:
      break;
  }
  return true;
}

bool HttpApi::NeedsKey(const Route& route, Port port) {
  return route.needs != Needs::kNothing || (port == Port::kAdmin && route.where != Where::kBoth);
}

std::string HttpApi::Describe(bool keys, Port port, bool has_admin_port) {
  std::vector<DescribedRoute> described;
  for (const Route& route : kRoutes) {
    if (!ServesAt(route, port, has_admin_port)) continue;
    described.push_back({route.path, route.methods, NeedsKey(route, port),
                         route.needs == Needs::kTime, route.note});
  }
  return JsonText(OpenApiDocument(described, keys));
}

std::string HttpApi::DescribeRoutes(bool keys) { return Describe(keys, Port::kClients, false); }
std::string HttpApi::DescribeAdminRoutes(bool keys) { return Describe(keys, Port::kAdmin, true); }

const HttpApi::Route* HttpApi::FindRoute(absl::string_view path) {
  const absl::string_view routed = RoutePath(path);
  for (const Route& route : kRoutes) {
    if (routed == route.path) return &route;
  }
  return nullptr;
}

void HttpApi::AuditFault(const HttpRequest& head, const Call& call, Port port, int status) const {
  const Route* route = FindRoute(call.request.path);
  if (route == nullptr) return;
  std::shared_ptr<Tenant> tenant;
  if (deps_.keys != nullptr) {
    absl::StatusOr<std::shared_ptr<Tenant>> known = deps_.keys->Identify(Authorization(head));
    if (!known.ok()) return;
    tenant = *std::move(known);
  }
  const auto audit = BeginAudit(head, *route, port, call.request_id);
  if (audit == nullptr) return;
  audit->SetTenant(tenant.get());
  audit->SetHttpResult(status);
}

absl::string_view HttpApi::MethodsOf(absl::string_view path) {
  const Route* route = FindRoute(path);
  return route == nullptr ? "" : route->methods;
}

}  // namespace tandem::router
