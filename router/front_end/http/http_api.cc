#include "router/front_end/http/http_api.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/runtime/clock.h"
#include "router/front_end/http/api_answer.h"
#include "router/front_end/http/chat_messages.h"
#include "router/front_end/http/chat_request.h"
#include "router/front_end/http/completion_request.h"
#include "router/front_end/http/json_fields.h"
#include "router/front_end/http/openai_error.h"
#include "router/front_end/http/request_headers.h"
#include "router/front_end/http/request_host.h"
#include "router/front_end/http/response_request.h"
#include "router/front_end/http/truncate_prompts.h"
#include "router/front_end/inbox.h"
#include "router/front_end/long_work.h"
#include "router/front_end/request_validation.h"
#include "router/front_end/trace_parent.h"

namespace tandem::router {
namespace {

constexpr absl::string_view kModelsFolder = "/v1/models/";
constexpr char kServedInstead[] =
    "; this router's model writes text, over /v1/chat/completions, /v1/responses and "
    "/v1/completions";
// For requests to the operators' port that have not arrived whole, and answers not yet read.
constexpr int64_t kAdminBufferBytes = int64_t{32} << 20;
// For so long a browser does not repeat a preflight request.
constexpr char kPreflightSeconds[] = "600";
// The core's strand ticks every 20 ms; silent for this long, it counts as dead.
constexpr absl::Duration kCoreDeadAfter = absl::Seconds(5);

bool Lists(absl::string_view methods, absl::string_view method) {
  for (const absl::string_view one : absl::StrSplit(methods, ", ")) {
    if (one == method) return true;
  }
  return false;
}

// Base URLs are written with a slash at their end, too.
absl::string_view WithoutLastSlash(absl::string_view path) {
  if (path.size() > 1) absl::ConsumeSuffix(&path, "/");
  return path;
}

HttpReply JsonReply(const Json& json) { return {.body = JsonText(json)}; }

}  // namespace

absl::StatusOr<std::unique_ptr<HttpApi>> HttpApi::Start(const HttpApiOptions& options, Deps deps) {
  auto front_end = std::make_unique<HttpApi>(std::move(deps), options);
  // Both ports are bound before either serves: operators ask about the clients' port.
  if (!options.admin_address.empty()) {
    HttpServerOptions admin = options.server;
    admin.address = options.admin_address;
    admin.threads = 1;
    admin.buffer_bytes_max = kAdminBufferBytes;
    ASSIGN_OR_RETURN(front_end->admin_,
                     HttpServer::Listen(admin, front_end->HooksOf(Port::kAdmin)));
  }
  ASSIGN_OR_RETURN(front_end->server_,
                   HttpServer::Listen(options.server, front_end->HooksOf(Port::kClients)));
  // First the operators' port, so that no client is served without the rules that it brings.
  if (front_end->admin_ != nullptr) front_end->admin_->Run();
  front_end->server_->Run();
  return front_end;
}

HttpConnection::Hooks HttpApi::HooksOf(Port port) {
  HttpConnection::Hooks hooks;
  hooks.handle = [this, port](HttpRequest request, std::shared_ptr<HttpExchange> exchange) {
    Handle(std::move(request), std::move(exchange), port);
  };
  hooks.refuse = [this, port](const HttpRequest& head) { return RefuseBeforeBody(head, port); };
  hooks.fault = [this, port](int status, const std::string& message,
                             const std::optional<HttpRequest>& head) {
    HttpReply reply = ErrorReply(status, message);
    if (!head.has_value()) return reply;
    const Call call = CallOf(*head);
    AuditFault(*head, call, port, status);
    return Worded(call, std::move(reply));
  };
  return hooks;
}

HttpApi::HttpApi(Deps deps, const HttpApiOptions& options)
    : deps_(std::move(deps)),
      allowed_origins_(options.allowed_origins),
      // Under TLS a foreign name does not fit the certificate.
      looks_at_hosts_(deps_.keys == nullptr && !options.server.tls.any()),
      loopback_(IsLoopback(options.server.address)),
      admin_loopback_(IsLoopback(options.admin_address)),
      started_s_(absl::ToUnixSeconds(RealClock().Now())),
      has_admin_port_(!options.admin_address.empty()),
      openapi_(Describe(deps_.keys != nullptr, Port::kClients, has_admin_port_)),
      admin_openapi_(Describe(deps_.keys != nullptr, Port::kAdmin, has_admin_port_)),
      responses_(options.responses),
      batches_(std::make_shared<BatchBudget>(options.batch_bytes_max)) {}

void HttpApi::BeginDrain() {
  deps_.session.running.BeginDrain();
  server_->EndKeepAlive();
}

void HttpApi::FinishDrain(absl::Duration timeout) {
  server_->BeginDrain();
  server_->AwaitIdle(timeout);
  // Last, so that operators see the end.
  if (admin_ != nullptr) admin_->BeginDrain();
}

void HttpApi::Stop() {
  server_->Stop();
  if (admin_ != nullptr) admin_->Stop();
}

std::string HttpApi::NewId(absl::string_view prefix) const {
  Random& random = deps_.session.random;
  return absl::StrFormat("%s%016x%016x", prefix, random.Next(), random.Next());
}

// ---- routing

HttpApi::Call HttpApi::CallOf(const HttpRequest& head) const {
  Call call;
  call.request.path = std::string(WithoutLastSlash(head.path));
  if (const absl::string_view version = head.Header(kAnthropicVersion); !version.empty())
    call.request.headers.emplace_back(kAnthropicVersion, version);
  call.request_id = GivenRequestId(head);
  if (call.request_id.empty()) call.request_id = NewId("");
  call.allow_origin = AllowOrigin(head.Header("origin"));
  return call;
}

HttpReply HttpApi::Worded(const Call& call, HttpReply reply) {
  FormOf(call).Apply(reply);
  const HttpHeaders headers = HeadersOf(call);
  reply.headers.insert(reply.headers.end(), headers.begin(), headers.end());
  return reply;
}

std::optional<HttpReply> HttpApi::RefuseBeforeBody(const HttpRequest& head, Port port) {
  if (deps_.keys == nullptr) return std::nullopt;
  const Route* route = FindRoute(WithoutLastSlash(head.path));
  // Handle refuses a path that is not there; the body's bound is the usual one.
  if (route == nullptr || !NeedsKey(*route, port)) return std::nullopt;
  const absl::Status known = NameKeyHeader(
      deps_.keys->IdentifyFrom(head.source, Authorization(head), RealClock().Now()).status(), head);
  if (known.ok()) return std::nullopt;
  const Call call = CallOf(head);
  if (const auto audit = BeginAudit(head, *route, port, call.request_id); audit != nullptr)
    audit->SetResult(known);
  return Worded(call, ErrorReply(known));
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange, Port port) {
  Call call;
  call.request_id = GivenRequestId(request);
  if (call.request_id.empty()) call.request_id = NewId("");
  const absl::string_view traceparent = request.Header("traceparent");
  if (!TraceIdOf(traceparent).empty()) call.traceparent = std::string(traceparent);
  call.allow_origin = AllowOrigin(request.Header("origin"));
  request.path.resize(WithoutLastSlash(request.path).size());
  call.request = std::move(request);
  call.exchange = std::move(exchange);
  call.port = port;
  call.now = RealClock().Now();
  if (const absl::Status host = CheckOneHost(call.request); !host.ok()) {
    return Reply(call, ErrorReply(host));
  }
  if (looks_at_hosts_) {
    const absl::Status host = CheckHost(
        call.request, port == Port::kAdmin ? admin_loopback_ : loopback_, allowed_origins_);
    if (!host.ok()) return Reply(call, ErrorReply(host));
  }
  if (const Route* route = FindRoute(call.request.path)) {
    if (ServesAt(*route, port, has_admin_port_)) return Dispatch(*route, call);
    const char* elsewhere = port == Port::kAdmin ? "clients" : "operators (--admin)";
    return Reply(call, ErrorReply(404, absl::StrCat(Shown(call.request.path),
                                                    ": not served here, expected "
                                                    "the router's port for ",
                                                    elsewhere)));
  }
  const bool of_openai = absl::StartsWith(call.request.path, "/v1/");
  Reply(call, ErrorReply(404, absl::StrCat("no such path: ", Shown(call.request.path),
                                           of_openai ? kServedInstead : "")));
}

void HttpApi::Dispatch(const Route& route, Call& call) {
  const std::string& method = call.request.method;
  if (method == "OPTIONS" && !call.allow_origin.empty()) return Preflight(route, call);
  if (!Lists(route.methods, method)) {
    HttpReply reply = ErrorReply(405, absl::StrCat(Shown(call.request.path), ": ", Shown(method),
                                                   ", expected ", route.methods));
    reply.headers.emplace_back("allow", route.methods);
    return Reply(call, std::move(reply));
  }
  if (route.needs == Needs::kTime) {
    // What asks for work: before any is done for it.
    const absl::Status shed = deps_.session.shedder.Admit(
        LoadShedder::FrontEndKind::kHttp, call.now - call.request.arrived, call.now,
        [&call] { return NamesLastEvent(call.request); });
    if (!shed.ok()) return Reply(call, ErrorReply(shed));
  }
  if (const absl::Status known = Identify(route, call); !known.ok()) {
    return Reply(call, ErrorReply(NameKeyHeader(known, call.request)));
  }
  if (method == "POST" && !IsJson(call.request)) {
    return Reply(call, ErrorReply(415, "content-type: expected application/json"));
  }
  const absl::string_view encoding = call.request.Header("content-encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) {
    return Reply(call, ErrorReply(415, absl::StrCat("content-encoding: ", Shown(encoding),
                                                    ", expected a body that is not compressed")));
  }
  Run(route, call);
}

std::shared_ptr<AuditCall> HttpApi::BeginAudit(const HttpRequest& head, const Route& route,
                                               Port port, const std::string& request_id) const {
  AuditLog* const log = deps_.session.audit;
  if (log == nullptr || !NeedsKey(route, port)) return nullptr;
  const std::string key(Authorization(head));
  const bool of_operators = route.where == Where::kOperators || route.where == Where::kAdminAlone;
  return AuditCall::Begin(log,
                          {.from = head.source,
                           .front_end = port == Port::kAdmin ? "admin" : "http",
                           .what = absl::StrCat(head.method, " ", head.path),
                           .request_id = request_id,
                           .authorization = key},
                          of_operators);
}

absl::Status HttpApi::Identify(const Route& route, Call& call) const {
  call.audit = BeginAudit(call.request, route, call.port, call.request_id);
  if (deps_.keys == nullptr || !NeedsKey(route, call.port)) {
    if (call.audit != nullptr) call.audit->SetTenant(nullptr);
    return absl::OkStatus();
  }
  const std::string key(Authorization(call.request));
  ASSIGN_OR_RETURN(call.tenant, deps_.keys->IdentifyFrom(call.request.source, key, call.now));
  if (call.audit != nullptr) call.audit->SetTenant(call.tenant.get());
  // What ends, deletes or looks up counts as no request: a used-up quota must not keep it away.
  if (route.needs == Needs::kTime) RETURN_IF_ERROR(call.tenant->CountRequest(call.now));
  if (call.port == Port::kAdmin) return call.tenant->CheckIsAdmin();
  return route.needs == Needs::kTime ? call.tenant->CheckMayInfer() : absl::OkStatus();
}

void HttpApi::Run(const Route& route, Call& call) {
  const size_t bytes = call.request.body.size();
  const bool reads_body = route.needs == Needs::kTime || route.handle == &HttpApi::OllamaShow;
  const bool may_render = route.needs == Needs::kTime && route.handle != &HttpApi::Completions &&
                          route.handle != &HttpApi::Detokenize;
  const bool takes_long = (reads_body && bytes > LongWork::kShortBytesMax) ||
                          (may_render && !deps_.session.assets.renders_shortly);
  if (!takes_long) return (this->*route.handle)(call);
  RunOnLongWork(call, bytes, route.handle);
}

void HttpApi::RunOnLongWork(Call& call, size_t bytes, void (HttpApi::*handle)(Call&)) {
  call.on_long_work = true;
  const auto held = std::make_shared<Call>(std::move(call));
  const absl::Status added =
      deps_.session.long_work.Add(bytes, [this, held, handle] { (this->*handle)(*held); });
  if (added.ok()) return;
  held->on_long_work = false;
  Reply(*held, ErrorReply(added));
}

void HttpApi::Reply(const Call& call, HttpReply reply) const {
  if (call.audit != nullptr) call.audit->SetHttpResult(reply.status);
  reply = Worded(call, std::move(reply));
  if (!call.on_long_work) return call.exchange->Reply(std::move(reply));
  call.exchange->Post([exchange = call.exchange, reply = std::move(reply)]() mutable {
    exchange->Reply(std::move(reply));
  });
}

std::string HttpApi::AllowOrigin(absl::string_view origin) const {
  if (origin.empty()) return "";
  for (const std::string& allowed : allowed_origins_) {
    if (allowed == "*" || absl::EqualsIgnoreCase(allowed, origin)) {
      return allowed == "*" ? allowed : std::string(origin);
    }
  }
  return "";
}

void HttpApi::Preflight(const Route& route, const Call& call) const {
  HttpReply reply;
  reply.headers.emplace_back("access-control-allow-methods", route.methods);
  const absl::string_view wanted = call.request.Header("access-control-request-headers");
  if (!wanted.empty()) reply.headers.emplace_back("access-control-allow-headers", wanted);
  reply.headers.emplace_back("access-control-max-age", kPreflightSeconds);
  Reply(call, std::move(reply));
}

HttpHeaders HttpApi::HeadersOf(const Call& call) {
  HttpHeaders headers = {{"x-request-id", call.request_id}};
  // What Anthropic's clients call it.
  if (FormOf(call).dialect == Dialect::kAnthropic) {
    headers.emplace_back("request-id", call.request_id);
  }
  if (!call.traceparent.empty()) headers.emplace_back("traceparent", call.traceparent);
  if (call.allow_origin.empty()) return headers;
  headers.emplace_back("access-control-allow-origin", call.allow_origin);
  headers.emplace_back("access-control-expose-headers",
                       "x-request-id, request-id, traceparent, retry-after");
  if (call.allow_origin != "*") headers.emplace_back("vary", "origin");
  return headers;
}

void HttpApi::ReplyWithStatus(const Call& call,
                              std::function<HttpReply(const v1::GetStatusResponse&)> make) {
  deps_.status.Read(call.now,
                    [this, call, make = std::move(make)](const StatusBoard::Status& status) {
                      call.exchange->Post([this, call, make, status] {
                        Reply(call, status != nullptr ? make(*status) : ErrorReply(InboxFull()));
                      });
                    });
}

// ---- completions

absl::StatusOr<Json> HttpApi::ParseBody(const Call& call) const {
  return ParseJsonBody(call.request.body, {.packs_prompts = true});
}

bool HttpApi::AsksForStrict(const Call& call, const Json& body) const {
  const absl::string_view header = call.request.Header("x-tandem-strict");
  if (!header.empty()) return header == "1" || absl::EqualsIgnoreCase(header, "true");
  const auto field = body.find("strict");
  return field != body.end() && *field == true;
}

void HttpApi::Completions(Call& call) {
  const absl::StatusOr<Json> body = ParseBody(call);
  if (!body.ok()) return Reply(call, ErrorReply(body.status()));
  absl::StatusOr<ApiRequest> api = ReadCompletion(*body, AsksForStrict(call, *body));
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  Generate(call, *std::move(api), "cmpl-");
}

void HttpApi::ChatCompletions(Call& call) {
  const absl::StatusOr<Json> body = ParseBody(call);
  if (!body.ok()) return Reply(call, ErrorReply(body.status()));
  absl::StatusOr<ApiRequest> api =
      ReadChat(*body, deps_.session.assets, call.now, AsksForStrict(call, *body));
  if (!api.ok()) return Reply(call, ErrorReply(api.status()));
  Generate(call, *std::move(api), "chatcmpl-");
}

absl::Status HttpApi::FitPrompts(const Call& call, ApiRequest& api) const {
  const FleetRoom now = {deps_.context_tokens(), deps_.prompt_tokens()};
  return TruncatePrompts(deps_.session.assets, RoomOfLastEvent(call.request).value_or(now), api);
}

void HttpApi::Generate(Call& call, ApiRequest api, const char* id_prefix) {
  const absl::Status fits = FitPrompts(call, api);
  if (!fits.ok()) return Reply(call, ErrorReply(fits));
  absl::StatusOr<RunningAnswers::Guard> guard = deps_.session.running.Enter();
  if (!guard.ok()) return Reply(call, ErrorReply(guard.status()));
  ApiAnswer::Options options;
  const ModelIdentity& model = deps_.session.assets.identity;
  const std::string& given_id = api.requests[0].request_id();
  std::string id = given_id.empty() ? NewId(id_prefix) : given_id;
  const absl::Status ready =
      MakeResumable(call.request, model.fingerprint, deps_.session.random, id, api);
  if (!ready.ok()) return Reply(call, ErrorReply(ready));
  options.head = {std::move(id), absl::ToUnixSeconds(call.now), model.served_name(),
                  model.mixed_numerics ? absl::StrCat(model.fingerprint, "-mixed-numerics")
                                       : model.fingerprint};
  if (api.requests.size() == 1) api.requests[0].set_request_id(options.head.id);
  options.headers = HeadersOf(call);
  options.error_form = FormOf(call);
  options.batches = batches_;
  if (model.mixed_numerics) options.headers.emplace_back("x-tandem-mixed-numerics", "true");
  Arrival arrival{call.request.arrived, TraceIdOf(call.traceparent),
                  LoadShedder::FrontEndKind::kHttp};
  arrival.guard = *std::move(guard);
  arrival.resumes = api.resumes;
  arrival.chat_turn = api.chat_turn;
  // The last event of a response's stream repeats all of it.
  arrival.keeps_answers = !api.stream || api.kind == ApiKind::kResponse;
  if (api.response != nullptr) arrival.front_end_bytes = api.response->held_bytes();
  arrival.audit = call.audit;
  if (call.tenant != nullptr) {
    int64_t sequences = 0;
    for (const v1::GenerateRequest& request : api.requests) sequences += SequencesOf(request);
    // Several prompts have an id each, and cannot be resumed.
    const std::string request_id = api.requests.size() == 1 ? api.requests[0].request_id() : "";
    auto tenant_call = TenantCall::Begin(call.tenant, sequences, request_id, api.resumes);
    if (!tenant_call.ok()) return Reply(call, ErrorReply(tenant_call.status()));
    arrival.call = *std::move(tenant_call);
  }
  ApiAnswer::Start(std::move(api), call.exchange, deps_.session, std::move(options), arrival,
                   call.on_long_work);
}

// ---- models and tokens

absl::Status HttpApi::CheckServes(const std::string& model) const {
  const ModelIdentity& served = deps_.session.assets.identity;
  return model.empty() || served.Serves(model) ? absl::OkStatus() : served.NotServed(model);
}

Json HttpApi::ModelJson() const {
  const ModelIdentity& model = deps_.session.assets.identity;
  return {{"id", model.served_name()},   {"object", "model"},
          {"created", started_s_},       {"owned_by", "tandem"},
          {"root", model.served_name()}, {"max_model_len", deps_.context_tokens()}};
}

void HttpApi::Models(Call& call) {
  if (DialectOf(call.request) == Dialect::kAnthropic) return AnthropicModels(call);
  Reply(call, JsonReply({{"object", "list"}, {"data", Json::array({ModelJson()})}}));
}

void HttpApi::OneModel(Call& call) {
  const std::string name = call.request.path.substr(kModelsFolder.size());
  const ModelIdentity& model = deps_.session.assets.identity;
  const bool anthropic = DialectOf(call.request) == Dialect::kAnthropic;
  if (model.Serves(name))
    return Reply(call, JsonReply(anthropic ? AnthropicModelJson() : ModelJson()));
  Reply(call, ErrorReply(model.NotServed(name)));
}

// ---- the state of this router

// Probes take none of the core's time, so that many of them, or one while the core is busy, delay
// no request. The core itself says when it last did something.
std::optional<HttpReply> HttpApi::CoreIsDead() const {
  const absl::Duration silent = deps_.core_silent();
  if (silent < kCoreDeadAfter) return std::nullopt;
  return ErrorReply(absl::UnavailableError(
      absl::StrCat("the router's core has done nothing for ", absl::FormatDuration(silent))));
}

void HttpApi::Live(Call& call) {
  Reply(call, CoreIsDead().value_or(JsonReply({{"status", "live"}})));
}

void HttpApi::Health(Call& call) {
  if (std::optional<HttpReply> dead = CoreIsDead()) return Reply(call, *std::move(dead));
  if (deps_.ready()) return Reply(call, JsonReply({{"status", "ok"}}));
  Reply(call,
        ErrorReply(absl::UnavailableError("no decode node is ready, or this router is draining")));
}

// vLLM's: requests that run or are queued.
void HttpApi::Load(Call& call) {
  ReplyWithStatus(call, [](const v1::GetStatusResponse& status) {
    const v1::RouterStatus& router = status.router();
    return JsonReply({{"server_load", router.requests_running() + router.requests_queued()}});
  });
}

void HttpApi::Ready(Call& call) { Health(call); }

void HttpApi::Version(Call& call) { Reply(call, JsonReply({{"version", std::string(kVersion)}})); }

void HttpApi::Drain(Call& call) {
  BeginDrain();
  ReplyWithStatus(call, [](const v1::GetStatusResponse& status) {
    HttpReply reply = JsonReply({{"draining", true},
                                 {"requests_running", status.router().requests_running()},
                                 {"requests_queued", status.router().requests_queued()}});
    reply.status = 202;
    return reply;
  });
}

void HttpApi::Metrics(Call& call) {
  ReplyWithStatus(call, [this](const v1::GetStatusResponse& status) {
    HttpReply reply;
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = deps_.session.metrics.Text(
        status,
        {server_->connections(), server_->buffers().used(), server_->buffers().refused(),
         deps_.session.audit == nullptr ? 0 : deps_.session.audit->lost(), deps_.quota_routers()});
    reply.body += responses_.MetricsText();
    return reply;
  });
}

}  // namespace tandem::router
