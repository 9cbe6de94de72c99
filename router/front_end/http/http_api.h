// The HTTP API of a router: OpenAI's, and beside it Anthropic's, Ollama's and a little of
// llama.cpp's. It authenticates
// clients, sends requests to their handlers, and answers what needs no model itself. Completions
// run in the same AnswerSession as gRPC's Generate.
//
//   POST /v1/completions  /v1/chat/completions  /v1/responses  /tokenize  /detokenize
//   GET  /v1/responses/ID  DELETE /v1/responses/ID  POST /v1/responses/ID/cancel
//   POST /v1/responses/input_tokens
//   POST /v1/messages  /v1/messages/count_tokens (Anthropic's)
//   POST /api/chat  /api/generate  /api/show  GET  /api/tags  /api/ps  /api/version (Ollama's)
//   GET  /props (llama.cpp's)
//   GET  /v1/models  /v1/models/NAME  /health  /ping  /load  /live  /ready  /version  /metrics
//   GET  /  /page/NAME  /docs  /openapi.json  /status  /traces  /traces/ID
//
// Thread safety: public methods from any thread; the owner alone starts and destroys it. Handlers
// run on the server's I/O threads. Owner: the router process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/http/api_dialect.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/batch_budget.h"
#include "router/front_end/http/http_server.h"
#include "router/front_end/http/openapi.h"
#include "router/front_end/http/response_store.h"
#include "router/front_end/json_body.h"
#include "router/front_end/request_metrics.h"
#include "router/front_end/status_board.h"

namespace tandem::router {

struct HttpApiOptions {
  HttpServerOptions server;
  // host:port of the port for operators; empty: there is none, and clients' port serves what they
  // ask for, but no drain.
  std::string admin_address;
  // Origins whose pages may call from a browser, such as "https://chat.example"; "*": all.
  std::vector<std::string> allowed_origins;
  ResponseStore::Options responses;            // which finished responses are kept
  int64_t batch_bytes_max = int64_t{8} << 30;  // of all batches of prompts; see BatchBudget
};

class HttpApi {
 public:
  // `ready`: returns whether requests can be served now. `context_tokens`: the longest sequence
  // that the fleet serves now; `prompt_tokens`: the longest prompt. `core_silent`: for how long the
  // core has done nothing. `keys`: the clients that may call; null: all. Everything that Deps
  // refers to outlives the HttpApi.
  struct Deps {
    AnswerSession::Deps session;
    StatusBoard& status;
    std::function<bool()> ready;
    std::function<int64_t()> context_tokens;
    std::function<absl::Duration()> core_silent;
    ApiKeys* keys = nullptr;
    std::function<int64_t()> quota_routers;  // that share tenants' quotas with this one
    std::function<int64_t()> prompt_tokens;
  };

  // The text of /openapi.json of a router without a port for operators, and of such a port. `keys`:
  // the router knows API keys. They have every route that is served there.
  static std::string DescribeRoutes(bool keys);
  static std::string DescribeAdminRoutes(bool keys);
  // The methods that a path takes, "GET, HEAD"; empty for a path that is not served.
  static absl::string_view MethodsOf(absl::string_view path);

  static absl::StatusOr<std::unique_ptr<HttpApi>> Start(const HttpApiOptions& options, Deps deps);

  HttpApi(Deps deps, const HttpApiOptions& options);

  const std::string& address() const { return server_->address(); }
  // Empty without a port for operators.
  std::string admin_address() const { return admin_ == nullptr ? "" : admin_->address(); }
  // From now on completions are refused with 503, here and over gRPC, and clients' connections
  // close after their answers: their next requests go to another router. Probes still connect.
  void BeginDrain();
  // Waits until running answers are written and their connections closed, at most `timeout`.
  void FinishDrain(absl::Duration timeout);
  // Closes all connections and ends the threads. REQUIRES of the owner: it destroys this object
  // only after the router core holds none of its requests.
  void Stop();

 private:
  enum class Port { kClients, kAdmin };
  // One request while it is handled.
  struct Call {
    HttpRequest request;
    std::shared_ptr<HttpExchange> exchange;
    Port port = Port::kClients;
    std::string request_id;
    std::string traceparent;   // valid, or empty
    std::string allow_origin;  // the origin whose pages may read the answer; empty: none
    absl::Time now;
    std::shared_ptr<Tenant> tenant;    // null in a router without keys
    std::shared_ptr<AuditCall> audit;  // null without an audit log, or for a path that needs no key
    // Handled on the thread for long work, and not on the exchange's.
    bool on_long_work = false;
    // Above 0: its handler found so many kept bytes to read, too many for an I/O thread, and
    // stopped.
    size_t kept_bytes = 0;
  };
  // What a path needs: nothing; an API key; or a key with the scope infer and so much of the
  // router's time that the request counts against its quota and an overloaded router refuses it.
  enum class Needs { kNothing, kKey, kTime };
  // Which port serves a path: the clients'; the operators', or the clients' when there is no other;
  // the operators' alone; or both.
  enum class Where { kClients, kOperators, kAdminAlone, kBoth };
  struct Route {
    const char* path;
    const char* methods;  // as an allow header lists them
    Where where;
    Needs needs;
    void (HttpApi::*handle)(Call&);
    RouteNote note;  // for /openapi.json
  };
  // In http_routes.cc. Null for a path that is not served.
  static const Route kRoutes[];
  static const Route* FindRoute(absl::string_view path);
  static std::string Describe(bool keys, Port port, bool has_admin_port);
  static bool ServesAt(const Route& route, Port port, bool has_admin_port);
  // On the operators' port all but probes and the page's files needs a key, and an admin's.
  static bool NeedsKey(const Route& route, Port port);

  // What the answer to a request that is not read needs of its head.
  Call CallOf(const HttpRequest& head) const;
  // `reply` in the form of the path's API, with the headers of every answer.
  static HttpReply Worded(const Call& call, HttpReply reply);
  // The refusal of a request without a key that it needs, before its body is read.
  std::optional<HttpReply> RefuseBeforeBody(const HttpRequest& head, Port port);
  HttpConnection::Hooks HooksOf(Port port);
  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange, Port port);
  void Dispatch(const Route& route, Call& call);
  // A call of the audit log for a request with this head.
  std::shared_ptr<AuditCall> BeginAudit(const HttpRequest& head, const Route& route, Port port,
                                        const std::string& request_id) const;
  // Tells the audit log of a call that ended with `status` because its request could not be read.
  // `call`: its CallOf. In a router with keys it does so for a known key alone: the head may have
  // come in part.
  void AuditFault(const HttpRequest& head, const Call& call, Port port, int status) const;
  // Sets the call's tenant, where the route needs a key.
  absl::Status Identify(const Route& route, Call& call) const;
  // Calls the route's handler: here, or for a large body on the thread for long work. Takes `call`.
  void Run(const Route& route, Call& call);
  // Calls `handle` on the thread for long work; the call holds `bytes`. Takes `call`.
  void RunOnLongWork(Call& call, size_t bytes, void (HttpApi::*handle)(Call&));
  // Sends a reply; a refusal in the form of the path's API.
  void Reply(const Call& call, HttpReply reply) const;
  static ErrorForm FormOf(const Call& call) { return {DialectOf(call.request), call.request_id}; }
  // "*", the origin itself if it is allowed, or empty.
  std::string AllowOrigin(absl::string_view origin) const;
  // Answers the request that a browser makes before a page may call `route` (CORS).
  void Preflight(const Route& route, const Call& call) const;
  // x-request-id, traceparent if the client sent one, and the CORS headers for an allowed origin.
  static HttpHeaders HeadersOf(const Call& call);
  // Sends what `make` makes of the router's status, on the connection's I/O thread.
  void ReplyWithStatus(const Call& call,
                       std::function<HttpReply(const v1::GetStatusResponse&)> make);
  // The refusal of a request while the core does nothing; nullopt when it lives.
  std::optional<HttpReply> CoreIsDead() const;

  // ---- in http_api.cc
  void Completions(Call& call);
  void ChatCompletions(Call& call);
  void Models(Call& call);
  void OneModel(Call& call);
  void Health(Call& call);
  void Load(Call& call);
  void Live(Call& call);
  void Ready(Call& call);
  void Version(Call& call);
  void Metrics(Call& call);
  void Drain(Call& call);
  // The body as JSON; kInvalidArgument names the faulty field.
  absl::StatusOr<Json> ParseBody(const Call& call) const;
  // Whether the client wants unknown fields refused, by header or by the field `strict`.
  bool AsksForStrict(const Call& call, const Json& body) const;
  // Makes the prompts fit into what the fleet holds, where the request asks for that; of a stream
  // that is continued, into what it held when the stream began.
  absl::Status FitPrompts(const Call& call, ApiRequest& api) const;
  void Generate(Call& call, ApiRequest api, const char* id_prefix);
  // kNotFound when `model`, a client's name for it, is not served here; without one, all is well.
  absl::Status CheckServes(const std::string& model) const;
  Json ModelJson() const;
  std::string NewId(absl::string_view prefix) const;

  // ---- in responses_api.cc
  void Responses(Call& call);
  void KeptResponse(Call& call);
  void CancelResponse(Call& call);
  void InputTokens(Call& call);
  absl::StatusOr<ApiRequest> ResponseOf(Call& call);
  // The conversation of a kept response. One that takes long to read sets call.kept_bytes and fails
  // where the call is not on the threads for long work.
  absl::StatusOr<Json> ItemsOf(Call& call, const std::string& id);
  static ResponseStore::Owner OwnerOf(const Call& call) {
    return call.tenant == nullptr ? "" : call.tenant->name();
  }

  // ---- in anthropic_api.cc
  void Messages(Call& call);
  void CountTokens(Call& call);
  void AnthropicModels(Call& call);
  absl::StatusOr<ApiRequest> MessageOf(const Call& call, bool counts_only) const;
  // As ModelJson, in Anthropic's form.
  Json AnthropicModelJson() const;

  // ---- in ollama_api.cc
  void OllamaChat(Call& call);
  void OllamaGenerate(Call& call);
  void OllamaTags(Call& call);
  void OllamaRunning(Call& call);
  void OllamaShow(Call& call);
  void OllamaVersion(Call& call);
  void OllamaAnswer(Call& call, ApiKind kind);
  absl::StatusOr<std::string> OllamaNameIn(const Json& body) const;
  Json OllamaModel() const;

  // ---- in llama_cpp_api.cc
  void LlamaCppProperties(Call& call);

  // ---- in page_api.cc
  void Root(Call& call);
  void PageFileNamed(Call& call);
  void Docs(Call& call);
  void OpenApi(Call& call);
  void ClusterStatus(Call& call);
  void Traces(Call& call);
  void OneTrace(Call& call);

  // ---- in tokenize_api.cc
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  // The members of /tokenize's answer but the last.
  absl::StatusOr<std::string> TokenizeText(const Call& call) const;
  absl::StatusOr<Json> DetokenizeJson(const Call& call) const;

  const Deps deps_;
  const std::vector<std::string> allowed_origins_;
  const bool looks_at_hosts_;  // see request_host.h
  const bool loopback_, admin_loopback_;
  const int64_t started_s_;
  const bool has_admin_port_;
  const std::string openapi_, admin_openapi_;  // of each port
  ResponseStore responses_;
  // Shared with the answers, which may outlive this object.
  const std::shared_ptr<BatchBudget> batches_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpServer> admin_;  // null without a port for operators
};

}  // namespace tandem::router
