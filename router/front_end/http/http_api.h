// The OpenAI-compatible HTTP API of a router: authenticates, routes requests to their handlers, and
// answers what needs no model. Completions go through the same AnswerSession as gRPC's Generate.
//
//   POST /v1/completions  /v1/chat/completions  /v1/responses  /tokenize  /detokenize
//   GET  /v1/responses/ID  DELETE /v1/responses/ID  POST /v1/responses/ID/cancel
//   POST /v1/responses/input_tokens
//   GET  /v1/models  /v1/models/NAME  /health  /ping  /load  /live  /ready  /version  /  /metrics
//
// Thread safety: public methods from any thread; Start and the destructor by the owner.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/http_server.h"
#include "router/front_end/http/response_store.h"
#include "router/front_end/request_metrics.h"

namespace tandem::router {

struct FrontEndOptions {
  HttpServerOptions server;
  // Whose pages may call from a browser, such as "https://chat.example"; "*" = anybody's.
  std::vector<std::string> allowed_origins;
  ResponseStore::Options responses;  // finished ones that are kept
};

class HttpApi {
 public:
  // `ready`: whether requests can be served now. `keys`: who may ask; null = anybody. All that is
  // referred to outlives the front end.
  struct Deps {
    AnswerSession::Deps session;
    std::function<bool()> ready;
    ApiKeys* keys = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<HttpApi>> Start(const FrontEndOptions& options, Deps deps);

  HttpApi(Deps deps, const FrontEndOptions& options);

  const std::string& address() const { return server_->address(); }
  // From now on completions are refused with 503 and /ready says no.
  void BeginDrain() { draining_ = true; }
  // Waits until running answers are written and their connections closed, at most `timeout`.
  void FinishDrain(absl::Duration timeout);
  // Closes all connections and ends the threads. The object must live on until no turn of
  // the router refers to its requests any more.
  void Stop() { server_->Stop(); }

 private:
  // A request on its way to its answer.
  struct Call {
    HttpRequest request;
    std::shared_ptr<HttpExchange> exchange;
    std::string request_id;
    std::string traceparent;   // valid, or empty
    std::string allow_origin;  // whose pages may read the answer; empty: no page is told
    absl::Time now;
    ApiKeys::Key* key = nullptr;
  };
  // What a path asks for: nothing, an API key, or that and so much of the router's time that an
  // overloaded one refuses it.
  enum class Needs { kNothing, kKey, kTime };
  struct Route {
    const char* path;
    const char* methods;  // as an allow header lists them
    Needs needs;
    void (HttpApi::*handle)(Call&);
  };
  static const Route kRoutes[];

  void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange);
  void Dispatch(const Route& route, Call& call);
  void Reply(const Call& call, HttpReply reply) const;
  // "*", the origin itself if it is allowed, or empty.
  std::string AllowOrigin(absl::string_view origin) const;
  // Answers what a browser asks before it lets a page call `route`.
  void Preflight(const Route& route, const Call& call) const;
  // x-request-id, traceparent if one came, and what a page of an allowed origin may read.
  static HttpHeaders HeadersOf(const Call& call);
  // Runs `make` in the router's turn and sends its reply.
  void RunOnCore(const Call& call, std::function<HttpReply(RouterCore&, absl::Time)> make);

  void Completions(Call& call);
  void ChatCompletions(Call& call);
  // Those of front_end_responses.cc.
  void Responses(Call& call);
  void KeptResponse(Call& call);
  void CancelResponse(Call& call);
  void InputTokens(Call& call);
  absl::StatusOr<ApiRequest> ResponseOf(Call& call);
  absl::StatusOr<Json> ItemsOf(const Call& call, const std::string& id);
  void Generate(Call& call, ApiRequest api, const char* id_prefix);
  void Models(Call& call);
  void Tokenize(Call& call);
  void Detokenize(Call& call);
  void Health(Call& call);
  void Load(Call& call);
  void Live(Call& call);
  void Ready(Call& call);
  void Version(Call& call);
  void Metrics(Call& call);

  absl::StatusOr<Json> Body(const Call& call) const;
  bool Strict(const Call& call, const Json& body) const;
  absl::StatusOr<Json> TokenizeJson(const Call& call) const;
  absl::StatusOr<Json> DetokenizeJson(const Call& call) const;
  Json ModelJson(int64_t context_tokens) const;
  std::string NewId(absl::string_view prefix) const;

  const Deps deps_;
  const std::vector<std::string> allowed_origins_;
  const int64_t started_s_;
  ResponseStore responses_;
  std::atomic<bool> draining_{false};
  std::unique_ptr<HttpServer> server_;
};

}  // namespace tandem::router
