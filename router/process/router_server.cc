#include "router/process/router_server.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/server.h"
#include "common/rpc/shutdown_text.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"
#include "common/telemetry/log.h"
#include "router/core/router_core.h"
#include "router/front_end/answer_session.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/grpc/client_service.h"
#include "router/front_end/http/http_api.h"
#include "router/front_end/quota_exchange.h"
#include "router/front_end/running_answers.h"
#include "router/front_end/throughput_line.h"
#include "router/process/command_messages.h"
#include "router/process/fleet_service.h"

namespace tandem::router {
namespace {

// A server; where its port cannot be had, the error names the flag that chooses another one.
absl::StatusOr<std::unique_ptr<rpc::Server>> WithFlag(
    const char* flag, absl::StatusOr<std::unique_ptr<rpc::Server>> server) {
  if (!absl::IsUnavailable(server.status())) return server;
  return absl::UnavailableError(
      absl::StrCat(server.status().message(), "; ", flag, " chooses another port"));
}

// How often the strand checks deadlines when nothing else happens.
constexpr absl::Duration kTickInterval = absl::Milliseconds(20);
// Up to this many streams, the thread that runs the core writes their parts itself. That saves a
// wake-up for each, and keeps the strand busy for as many writes to non-blocking sockets (10 to 20
// µs each on a virtual machine).
constexpr size_t kFewStreams = 4;
// Nodes that carry every report of this router to others.
constexpr size_t kFixedCarriers = 2;
// While draining, how long writing the ends of complete answers may take.
constexpr absl::Duration kLastWrites = absl::Seconds(2);

class RouterServerImpl final : public RouterServer {
 public:
  RouterServerImpl(const RouterServerOptions& options, std::unique_ptr<ModelAssets> assets,
                   std::unique_ptr<AuditLog> audit)
      : audit_(std::move(audit)),
        assets_(std::move(assets)),
        random_(NewSystemRandom()),
        core_(std::make_unique<RouterCore>(options.core, assets_->identity, *random_)),
        tiers_(options.service_tiers),
        metrics_(assets_->identity.served_name(), tiers_),
        traces_(options.traces_max),
        shedder_(options.overload, metrics_),
        access_log_(options.access_log),
        certificates_{rpc::CertificateWatch(options.tls.certificate),
                      rpc::CertificateWatch(FleetPortTls(options).files.certificate)},
        throughput_(metrics_, options.throughput_every, RealClock().Now()),
        inbox_(static_cast<size_t>(options.inbox_max),
               [this](std::vector<InboxItem>& items) { RunCore(items); }),
        fleet_service_(inbox_, FleetOptions(options)),
        client_service_(SessionDeps(), status_, [this] { return Served(); }) {}

  ~RouterServerImpl() override {
    answers_.BeginDrain();
    fleet_service_.DisconnectAll(absl::UnavailableError(rpc::kRouterShutsDown));
    // Cancels open calls. The router thread goes on until the last of them has ended.
    if (http_ != nullptr) http_->Stop();
    if (client_server_ != nullptr) client_server_->Shutdown(absl::ZeroDuration());
    if (fleet_server_ != nullptr) fleet_server_->Shutdown(absl::ZeroDuration());
    inbox_.Close();
    thread_.Join();
  }

  absl::Status StartServing(const RouterServerOptions& options) {
    UpdateReadiness();
    if (!options.api_keys.empty()) {
      ASSIGN_OR_RETURN(keys_, ApiKeys::Load(options.api_keys, options.wrong_keys, &tiers_));
      client_service_.RequireKeys(keys_.get());
      if (!options.admin_address.empty()) client_service_.GuardStatus(options.fleet_secret);
    }
    rpc::ServerLimits nodes = rpc::kNodeLimits, clients = rpc::kClientLimits;
    nodes.reflection = clients.reflection = options.reflection;
    ASSIGN_OR_RETURN(fleet_server_, WithFlag("--fleet", rpc::Server::Start(options.fleet_address,
                                                                           {&fleet_service_}, nodes,
                                                                           FleetPortTls(options))));
    ASSIGN_OR_RETURN(
        client_server_,
        WithFlag("--grpc", rpc::Server::Start(options.grpc_address, {&client_service_}, clients,
                                              {options.tls, rpc::ClientRule()})));
    if (!options.http_address.empty()) {
      HttpApiOptions http;
      http.server.address = options.http_address;
      http.admin_address = options.admin_address;
      http.server.threads = options.http_threads;
      http.server.buffer_bytes_max = options.http_buffer_bytes;
      http.server.tls = options.tls;
      http.allowed_origins = options.allowed_origins;
      http.responses.responses_max = options.stored_responses_max;
      http.batch_bytes_max = options.core.request_bytes_max;
      ASSIGN_OR_RETURN(
          http_,
          HttpApi::Start(
              http,
              {SessionDeps(), status_, [this] { return decode_ready_ && !answers_.draining(); },
               [this] { return context_tokens_.load(); },
               [this] { return RealClock().Now() - absl::FromUnixNanos(last_batch_ns_); },
               keys_.get(), [this] { return quotas_.peers(RealClock().Now()); },
               [this] { return prompt_tokens_.load(); }}));
    }
    thread_ = Thread("router", [this] { inbox_.RunFallback(kTickInterval); });
    return absl::OkStatus();
  }

  const std::string& grpc_address() const override { return client_server_->address(); }
  const std::string& fleet_address() const override { return fleet_server_->address(); }

  std::string http_address() const override { return http_ == nullptr ? "" : http_->address(); }

  std::string admin_address() const override {
    return http_ == nullptr ? "" : http_->admin_address();
  }

  void Watch() override {
    ReloadKeys();
    client_server_->SetHealth("", true);
    client_server_->SetHealth("ready", decode_ready_ && !answers_.draining());
    const absl::Time now = RealClock().Now();
    throughput_.OnTick(now, CountRequests());
    for (rpc::CertificateWatch& certificate : certificates_) certificate.OnTick(now);
  }

  bool Drain(absl::Duration timeout) override {
    Log(LogLevel::kInfo, "the router is draining", {{"timeout", absl::FormatDuration(timeout)}});
    answers_.BeginDrain();
    if (http_ != nullptr) http_->BeginDrain();
    Watch();
    const bool idle = answers_.AwaitNone(timeout);
    // What the core and the front ends have ended may still be on its way to the clients.
    const absl::Time until = RealClock().Now() + kLastWrites;
    if (http_ != nullptr) http_->FinishDrain(kLastWrites);
    client_server_->Shutdown(std::max(until - RealClock().Now(), absl::ZeroDuration()));
    if (idle) {
      Log(LogLevel::kInfo, "drained");
    } else {
      Log(LogLevel::kWarning, "drain timed out, running work is cut off");
    }
    return idle;
  }

 private:
  static FleetService::Options FleetOptions(const RouterServerOptions& options) {
    FleetService::Options fleet;
    fleet.secret = options.fleet_secret;
    fleet.roles_from_certificates = options.fleet_tls.has_value();
    return fleet;
  }
  static rpc::ServerTls FleetPortTls(const RouterServerOptions& options) {
    if (!options.fleet_tls.has_value()) return {};
    return {options.fleet_tls->files(), options.fleet_tls->NodeRule()};
  }
  AnswerSession::Deps SessionDeps() {
    return {*assets_,     inbox_,     *random_, metrics_, traces_,     shedder_,
            constraints_, long_work_, tiers_,   answers_, access_log_, audit_.get()};
  }
  void ReloadKeys() {
    if (keys_ == nullptr) return;
    const std::optional<absl::Status> reloaded = keys_->ReloadIfChanged();
    if (!reloaded.has_value() || audit_ == nullptr) return;
    audit_->Record(
        {.event = "keys", .what = "reload", .result = absl::StatusCodeToString(reloaded->code())});
  }
  RequestCounts CountRequests() const {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

  // ---- on the core's strand

  void RunCore(std::vector<InboxItem>& items) {
    const absl::Time now = RealClock().Now();
    last_batch_ns_.store(absl::ToUnixNanos(now), std::memory_order_relaxed);
    for (InboxItem& item : items) {
      std::visit([this, now](auto& event) { Handle(event, now); }, item);
      // At once, so that /health is never older than a status that this batch answers.
      UpdateReadiness();
    }
    if (now >= next_tick_) {
      core_->OnTick(now);
      fleet_service_.OnTick(now);
      core_->SetStreamsRefused(fleet_service_.streams_refused());
      UpdateReadiness();
      next_tick_ = now + kTickInterval;
    }
    if (keys_ != nullptr && now >= next_report_) ReportQuotas(now);
    Dispatch(now);
    absl::MutexLock lock(&mutex_);
    requests_ = core_->request_counts();
  }

  void Handle(SubmitRequest& event, absl::Time now) {
    absl::Status status =
        shedder_.Dequeued(event.position, event.session->resumes(), RealClock().Now());
    const bool is_shed = !status.ok();
    const RequestId id = event.input.id;
    if (event.session->EndIfCancelled()) return FlushSoon(event.session);
    if (status.ok()) {
      if (sessions_.contains(id)) {
        // The client resumes an answer whose earlier call broke off, before this router has
        // noticed.
        if (event.session->resumes()) core_->Finish(id, request::FinishReason::kAborted, now);
        // What the core said of an earlier request with this id goes to that request's session.
        Dispatch(now);
      }
      status = core_->Submit(std::move(event.input), now);
    }
    if (!status.ok()) {
      event.session->Fail(status, is_shed);
      FlushSoon(event.session);
      return;
    }
    event.session->Accepted();
    FlushSoon(event.session);
    sessions_[id] = std::move(event.session);
  }
  void Handle(SessionEnded& event, absl::Time now) {
    // A call that was refused because the id is running must not end the running request.
    const auto found = sessions_.find(event.id);
    if (found != sessions_.end() && found->second == event.session) {
      core_->Finish(event.id, event.reason, now);
    }
  }
  void Handle(NodeRegistered& event, absl::Time now) {
    absl::StatusOr<v1::Welcome> welcome = core_->NodeJoined(event.node, event.registration, now);
    if (!welcome.ok()) {
      Log(LogLevel::kWarning, "refused a node",
          {{"node_id", event.registration.node_id()}, {"why", welcome.status().message()}});
      fleet_service_.Disconnect(event.node, welcome.status());
      return;
    }
    v1::RouterMessage message;
    *message.mutable_welcome() = *std::move(welcome);
    fleet_service_.Send(event.node, std::move(message));
  }
  void Handle(NodeSpoke& event, absl::Time now) {
    if (keys_ != nullptr && event.message->reports_size() > 0) {
      const QuotaExchange::Tenants tenants = keys_->tenants();
      for (const v1::RouterReport& report : event.message->reports())
        quotas_.OnReport(report, tenants, now);
    }
    core_->OnNodeMessage(event.node, *event.message, now);
  }
  void Handle(NodeGone& event, absl::Time now) { core_->NodeLost(event.node, event.why, now); }
  void Handle(CoreCall& event, absl::Time now) { event.call(*core_, now); }

  // Tells the other routers what tenants have used. A few nodes carry it: two always, so that no
  // report misses the others, and one after the other, in case those two know other routers.
  void ReportQuotas(absl::Time now) {
    next_report_ = now + QuotaExchange::kInterval;
    v1::RouterMessage message;
    *message.mutable_report() = quotas_.Report(keys_->tenants(), now);
    const std::vector<const Node*> nodes = core_->fleet().nodes();
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (i < kFixedCarriers || i == message.report().version() % nodes.size())
        fleet_service_.Send(nodes[i]->key, message);
    }
  }

  void Dispatch(absl::Time now) {
    // Delivering events can end requests, which gives new actions.
    while (true) {
      core_->TakeActions(actions_);
      RouterActions& actions = actions_;
      if (actions.empty()) break;
      SendCommands(actions);
      for (auto& [id, event] : actions.client_events) Deliver(id, event, now);
      for (const LentReport& report : actions.lent_reports) traces_.OnLent(report);
      for (auto& [node, why] : actions.disconnects) fleet_service_.Disconnect(node, why);
    }
    for (const auto& session : unflushed_) session->Flush(/*inline_ok=*/true);
    unflushed_.clear();
    flush_on_io_threads_ = false;
  }

  // Flushes the session's sink at the end of Dispatch on this thread, if the session's I/O thread
  // is idle and few sessions have parts. If many have, wakes each one's I/O thread now, which then
  // works beside this thread.
  void FlushSoon(const std::shared_ptr<AnswerSession>& session) {
    if (!flush_on_io_threads_ && unflushed_.size() < kFewStreams) {
      if (unflushed_.empty() || unflushed_.back() != session) unflushed_.push_back(session);
      return;
    }
    flush_on_io_threads_ = true;
    for (const auto& earlier : unflushed_) earlier->Flush(/*inline_ok=*/false);
    unflushed_.clear();
    session->Flush(/*inline_ok=*/false);
  }

  void SendCommands(RouterActions& actions) {
    for (auto& [node, message] : CommandMessages(actions.commands))
      fleet_service_.Send(node, std::move(message));
  }

  void Deliver(const RequestId& id, ClientEvent& event, absl::Time now) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    const auto* done = std::get_if<SequenceDone>(&event);
    const bool ended = std::holds_alternative<RequestFailed>(event) || (done && done->last);
    const auto* tokens = std::get_if<TokensReady>(&event);
    const int32_t sequence_index = tokens == nullptr ? 0 : tokens->sequence_index;
    const request::FinishReason end = found->second->OnEvent(std::move(event));
    FlushSoon(found->second);
    if (ended) {
      sessions_.erase(found);
    } else if (end == request::FinishReason::kStop) {
      core_->FinishSequence(id, sequence_index, end, now);
    } else if (end != request::FinishReason::kNone) {
      core_->Finish(id, end, now);
    }
  }

  ServedFleet Served() const {
    absl::MutexLock lock(&mutex_);
    return {numerics_id_, context_tokens_};
  }

  // For calls that ask about the fleet without taking the core's time.
  void UpdateReadiness() {
    decode_ready_ = core_->fleet().order().size(kDecodeNodes) > 0;
    context_tokens_ = core_->context_tokens();
    prompt_tokens_ = core_->prompt_tokens();
    if (core_->numerics_id() == shown_numerics_id_) return;
    shown_numerics_id_ = core_->numerics_id();
    absl::MutexLock lock(&mutex_);
    numerics_id_ = shown_numerics_id_;
  }

  const std::unique_ptr<AuditLog> audit_;  // null: there is none. Outlives all that records
  const std::unique_ptr<ModelAssets> assets_;
  const std::unique_ptr<Random> random_;
  const std::unique_ptr<RouterCore> core_;  // on its strand
  RouterActions actions_;                   // likewise; between calls only memory
  const ServiceTiers tiers_;
  RequestMetrics metrics_;
  TraceStore traces_;
  LoadShedder shedder_;
  RunningAnswers answers_;
  const bool access_log_;
  rpc::CertificateWatch certificates_[2];  // as throughput_
  ThroughputLine throughput_;              // on the thread that calls Watch
  std::unique_ptr<ApiKeys> keys_;          // null: no key is needed
  QuotaExchange quotas_{random_->Next()};
  absl::Time next_report_ = absl::InfinitePast();  // on the strand
  // Declared before the members that may hold its exchanges, so it is destroyed after them.
  std::unique_ptr<HttpApi> http_;
  Inbox inbox_;
  StatusBoard status_{inbox_};
  // Declared after what its thread uses, so it is destroyed before.
  guided::CompileQueue constraints_{[this](const request::GuidedParams& params) {
    static_cast<void>(assets_->constraints->Check(params));
  }};
  LongWork long_work_;  // as constraints_
  FleetService fleet_service_;
  ClientService client_service_;
  std::unique_ptr<rpc::Server> client_server_;
  std::unique_ptr<rpc::Server> fleet_server_;
  // Bound: --requests-max.
  absl::flat_hash_map<RequestId, std::shared_ptr<AnswerSession>> sessions_;  // on the strand
  // Bound: kFewStreams.
  std::vector<std::shared_ptr<AnswerSession>> unflushed_;  // on the strand; empty between batches
  bool flush_on_io_threads_ = false;                       // as unflushed_
  absl::Time next_tick_ = absl::InfinitePast();            // on the strand
  std::atomic<bool> decode_ready_{false};
  std::atomic<int64_t> context_tokens_{0}, prompt_tokens_{0};
  std::atomic<int64_t> last_batch_ns_{absl::ToUnixNanos(RealClock().Now())};  // of the core
  mutable absl::Mutex mutex_;
  RequestCounts requests_ ABSL_GUARDED_BY(mutex_);
  std::string shown_numerics_id_;  // on the strand
  std::string numerics_id_ ABSL_GUARDED_BY(mutex_);
  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(
    const RouterServerOptions& options, std::unique_ptr<ModelAssets> assets) {
  std::unique_ptr<AuditLog> audit;
  if (!options.audit_log.empty()) {
    ASSIGN_OR_RETURN(audit, AuditLog::Open(options.audit_log, options.core.router_id));
  }
  auto server = std::make_unique<RouterServerImpl>(options, std::move(assets), std::move(audit));
  RETURN_IF_ERROR(server->StartServing(options));
  return server;
}

}  // namespace tandem::router
