#include "common/node/node_runtime.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/bounded_queue.h"
#include "common/base/status_macros.h"
#include "common/base/steady_flag.h"
#include "common/engine/compute_pool.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending_service.h"
#include "common/node/constraint_gate.h"
#include "common/node/creditor_costs.h"
#include "common/node/heartbeats.h"
#include "common/node/router_streams.h"
#include "common/node/step_progress.h"
#include "common/rpc/cost_convert.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"
#include "common/storage/storage_service.h"
#include "common/telemetry/log.h"

namespace tandem::node {
namespace {

// How often deadlines are checked when nothing else happens.
constexpr absl::Duration kTickInterval = absl::Milliseconds(20);
// How often an idle engine thread looks whether a late creditor has answered.
constexpr absl::Duration kLateCheckInterval = absl::Milliseconds(1);

// Fraction of the drain timeout in which running work may finish; the rest is for migration.
constexpr double kShareToFinish = 0.5;

struct DrainRequest {
  absl::Duration time_left;
};
struct MigrationRequest {
  absl::Duration time_left;
};
using InboxItem =
    std::variant<RouterConnected, RouterSpoke, RouterGone, transfer::TransferEvent,
                 storage::StorageEvent, lending::LendingEvent, DrainRequest, MigrationRequest>;

class NodeRuntimeImpl final : public NodeRuntime {
 public:
  // Takes the parts that the engine thread uses.
  NodeRuntimeImpl(const NodeRuntimeOptions& options, NodeParts& parts)
      : options_(options),
        engine_(std::move(parts.engine)),
        resources_(std::move(parts.resources)),
        core_(std::move(parts.core)),
        inbox_(options.inbox_max) {}

  ~NodeRuntimeImpl() override {
    // Closing the inbox lets its writers go on without blocking; its reader uses the router streams
    // and transfer to the end.
    heartbeats_.Stop();
    inbox_.Close();
    engine_thread_.Join();
    routers_.reset();
    gate_.reset();
    lending_.reset();
    storage_.reset();
    transfer_.reset();
  }

  absl::Status StartThreads(std::unique_ptr<transfer::KvTransport> transport,
                            std::unique_ptr<storage::BlockTiers> tiers) {
    if (tiers != nullptr) {
      stored_blocks_max_ = tiers->slots();
      storage_ = std::make_unique<storage::StorageService>(
          std::move(tiers), engine_->arena(),
          [this](absl::Span<const BlockId> blocks) {
            if (const absl::Status status = engine_->FetchArrived(blocks); !status.ok())
              Log(LogLevel::kWarning, "stored KV blocks are copied to the device in a step",
                  {{"why", status.ToString()}});
          },
          [this](storage::StorageEvent event) { inbox_.Push(std::move(event)); });
    }
    RETURN_IF_ERROR(StartLending());
    ASSIGN_OR_RETURN(transfer_,
                     transfer::TransferService::Create(
                         options_.transfer, std::move(transport), engine_->arena(),
                         [this](transfer::TransferEvent event) { inbox_.Push(std::move(event)); }));
    if (options_.constraints != nullptr) {
      gate_.emplace(options_.constraints, [this](RouterKey router, v1::RouterMessage message) {
        inbox_.Push(RouterSpoke{router, std::move(message)});
      });
    }
    routers_ = RouterStreams::Create(
        options_.routers, {options_.transfer.kv_transfer.fleet_secret, options_.router_credentials},
        [this](RouterStreamEvent event) { OnRouterEvent(std::move(event)); });
    Publish(/*worked=*/false);
    engine_thread_ = Thread("engine", [this] { RunEngine(); });
    heartbeats_.Start(*routers_);
    // Start returns only after the engine thread is on its processor.
    engine_placed_.WaitForNotification();
    return absl::OkStatus();
  }

  // Both ends of lending: this node's loans to others, and others' loans to it.
  absl::Status StartLending() {
    if (options_.lend_blocks_max == 0) return absl::OkStatus();
    std::unique_ptr<engine::PartialAttention> attention = engine_->NewPartialAttention();
    if (attention == nullptr)
      return absl::InvalidArgumentError(
          "lend-fraction is set, but this engine cannot compute attention for other nodes; "
          "expected 0");
    const std::string& secret = options_.transfer.kv_transfer.fleet_secret;
    ASSIGN_OR_RETURN(lending_,
                     lending::LendingService::Start(
                         {.node = options_.node_id,
                          .incarnation = options_.incarnation,
                          .fleet_secret = secret,
                          .tcp_host = options_.lending_host,
                          .compute_share = options_.lend_compute_share},
                         std::move(attention), RealClock(),
                         [this](lending::LendingEvent event) { inbox_.Push(std::move(event)); }));
    ASSIGN_OR_RETURN(creditors_, lending::CreditorLinks::Create(
                                     {.self = {options_.node_id, options_.incarnation},
                                      .host = options_.host,
                                      .fleet_secret = secret},
                                     RealClock()));
    engine_->SetRemoteAttention(creditors_.get());
    return absl::OkStatus();
  }

  bool Drain(absl::Duration timeout) override {
    draining_ = true;
    inbox_.Push(DrainRequest{timeout * kShareToFinish});
    if (drained_.Await(timeout * kShareToFinish)) return true;
    const absl::Duration time_left = timeout * (1 - kShareToFinish);
    inbox_.Push(MigrationRequest{time_left});
    return drained_.Await(time_left);
  }

  bool live() const override { return progress_.live(RealClock().Now()); }
  bool ready() const override { return !draining_ && routers_->welcomed_count() > 0; }
  absl::Status refused() const override { return routers_->refused(); }

 private:
  // On a gRPC thread.
  void OnRouterEvent(RouterStreamEvent event) {
    if (auto* message = std::get_if<RouterSpoke>(&event)) {
      heartbeats_.NoteInterval(message->message);
      if (gate_.has_value()) gate_->Filter(message->router, message->message);
    } else if (const auto* gone = std::get_if<RouterGone>(&event)) {
      if (gate_.has_value()) gate_->OnRouterLost(gone->router);
    }
    std::visit([this](auto& e) { inbox_.Push(std::move(e)); }, event);
  }

  // ---- engine thread -------------------------------------------------------------------------

  void RunEngine() {
    if (options_.engine_processor.has_value()) engine::KeepThisThreadOn(*options_.engine_processor);
    engine_placed_.Notify();
    absl::Time next_tick = RealClock().Now();
    bool worked = false;
    while (true) {
      for (InboxItem& item : inbox_.PopAll(InboxWait(worked))) {
        std::visit([this](auto& event) { Handle(event); }, item);
      }
      if (inbox_.closed()) return;
      const absl::Time now = RealClock().Now();
      if (creditors_ != nullptr)
        for (const lending::LendingEvent& event : creditors_->Progress())
          core_->OnLending(event, now);
      if (now >= next_tick) {
        core_->OnTick(now);
        next_tick = now + kTickInterval;
      }
      Dispatch();
      worked = RunStep();
      heartbeats_.AnnounceFreedRoom(
          core_->held(), [this] { return Load(); }, *routers_);
      Publish(worked);
    }
  }

  absl::Duration InboxWait(bool worked) const {
    const bool soon = creditors_ != nullptr && creditors_->awaits_answers();
    return worked ? absl::ZeroDuration() : soon ? kLateCheckInterval : kTickInterval;
  }

  bool RunStep() {
    const absl::Span<const engine::SequenceSlice> slices = core_->PlanStep(RealClock().Now());
    if (slices.empty()) {
      progress_.OnIdle();
      Dispatch();  // the plan may have asked for blocks to be read
      return core_->preparing();
    }
    progress_.OnStepBegins(RealClock().Now());
    const absl::Duration awaited = CreditorsAwaited();
    auto result = engine_->Step(slices, [this](int layer) {
      core_->OnLayerDone(layer);
      Dispatch();
    });
    resources_->scheduler().OnCreditorsAwaited(CreditorsAwaited() - awaited);
    if (!result.ok())
      Log(LogLevel::kError, "engine step failed", {{"error", result.status().ToString()}});
    const absl::Time now = RealClock().Now();
    core_->OnStepDone(result, now);
    if (progress_.OnStepEnds(result.ok(), now))
      Log(LogLevel::kError, "engine steps fail in a row; if none ends well the node is not live",
          {{"failures", StepProgress::kFailuresMax},
           {"within", absl::FormatDuration(options_.progress_deadline)},
           {"error", result.status().ToString()}});
    Dispatch();
    return true;
  }

  // Since the start.
  absl::Duration CreditorsAwaited() const {
    return creditors_ == nullptr ? absl::ZeroDuration() : creditors_->counters().waited;
  }

  void Handle(RouterConnected& event) {
    v1::NodeMessage message;
    v1::Registration& registration = *message.mutable_registration();
    registration.set_node_id(options_.node_id.value());
    registration.set_incarnation(options_.incarnation.value());
    registration.set_role(core_->role());
    resources_->Describe(registration);
    registration.set_block_names(options_.block_names);
    registration.set_transfer_address(transfer_->address());
    registration.set_host(options_.host);
    registration.set_version(options_.version);
    registration.set_stored_blocks_max(stored_blocks_max_);
    if (lending_ != nullptr) {
      registration.set_lending_address(lending_->address());
      registration.set_lend_blocks_max(options_.lend_blocks_max);
      registration.set_lending_unit_tokens(engine_->spec().unit_tokens);
    }
    for (v1::NodeEvent& event : resources_->JoinEvents()) *message.add_events() = std::move(event);
    *message.mutable_load() = Load();
    // Sends earlier events first: none may be lost, and none may repeat what the snapshot holds.
    Dispatch();
    core_->OnRouterJoined(event.router, RealClock().Now());
    routers_->Send(event.router, std::move(message));
    // Until a router knows what steps cost here, placement compares a guess with others' figures.
    v1::NodeMessage costs;
    *costs.mutable_step_cost() = rpc::ToWire(resources_->step_profile());
    routers_->Send(event.router, std::move(costs));
    heartbeats_.OnRouterJoined();
  }
  void Handle(RouterSpoke& event) {
    const absl::Time now = RealClock().Now();
    for (const v1::NodeCommand& command : event.message.commands())
      core_->OnCommand(event.router, command, now);
  }
  void Handle(RouterGone& event) { core_->OnRouterLost(event.router, RealClock().Now()); }
  void Handle(transfer::TransferEvent& event) { core_->OnTransfer(event, RealClock().Now()); }
  void Handle(lending::LendingEvent& event) { core_->OnLending(event, RealClock().Now()); }
  void Handle(storage::StorageEvent& event) { core_->OnStorage(event, RealClock().Now()); }
  void Handle(DrainRequest& request) {
    core_->BeginDrain(RealClock().Now(), request.time_left);
    drain_begun_ = true;
  }
  void Handle(MigrationRequest& request) {
    core_->StartMigration(RealClock().Now(), request.time_left);
  }

  void Dispatch() {
    bool again = true;
    while (again) {
      resources_->TakeActions(actions_);
      if (actions_.empty()) return SubmitBacklog();
      for (const lending::LendingCommand& command : actions_.lending) CarryOut(command);
      for (transfer::TransferCommand& command : actions_.transfer)
        transfer_backlog_.push_back(std::move(command));
      SubmitBacklog();
      again = Submit(actions_.storage);
      SendEvents(actions_);
    }
  }
  // Whether the storage answered at once, which may have given new actions.
  bool Submit(std::vector<storage::StorageCommand>& commands) {
    bool answered = false;
    for (storage::StorageCommand& command : commands) {
      std::optional<storage::StorageEvent> event = storage_->Submit(std::move(command));
      if (event.has_value()) Handle(*event);
      answered |= event.has_value();
    }
    return answered;
  }
  void SendEvents(NodeActions& actions) {
    absl::flat_hash_map<RouterKey, v1::NodeMessage> messages;
    for (v1::NodeEvent& event : actions.broadcast)
      for (const RouterKey router : routers_->open()) *messages[router].add_events() = event;
    for (auto& [router, event] : actions.events) *messages[router].add_events() = std::move(event);
    if (messages.empty()) return;
    heartbeats_.SendWithLoad(std::move(messages), Load(), core_->held(), *routers_);
  }

  void CarryOut(const lending::LendingCommand& command) {
    std::visit(
        [this](const auto& c) {
          if constexpr (std::is_same_v<std::decay_t<decltype(c)>, lending::UseLoan> ||
                        std::is_same_v<std::decay_t<decltype(c)>, lending::ReturnLoan>) {
            creditors_->Handle(c);
          } else {
            lending_->Handle(c);
          }
        },
        command);
  }

  // Every command must reach the KV plane, or a lease would never drain. Commands that a full queue
  // refuses wait in the backlog, in order.
  void SubmitBacklog() {
    for (; !transfer_backlog_.empty(); transfer_backlog_.pop_front())
      if (!transfer_->Submit(transfer_backlog_.front()).ok()) return;
  }

  // The core's, with what waits for each thread.
  v1::NodeLoad Load() const {
    v1::NodeLoad load = core_->load();
    load.set_engine_backlog(static_cast<int64_t>(inbox_.size()));
    load.set_transfer_backlog(transfer_->backlog() + std::ssize(transfer_backlog_));
    if (storage_ != nullptr) load.set_storage_backlog(storage_->backlog());
    return load;
  }

  // The core's, with those of the KV plane and of lending.
  v1::NodeCounters Counters() const {
    v1::NodeCounters counters = resources_->counters();
    const transfer::TransferCounters transfer = transfer_->counters();
    counters.set_kv_bytes_sent(transfer.bytes_sent);
    counters.set_kv_bytes_received(transfer.bytes_received);
    counters.set_kv_frames_rejected(transfer.frames_rejected);
    counters.set_kv_frames_untimely(transfer.frames_untimely);
    counters.set_kv_connections_refused(transfer.connections_refused);
    counters.set_kv_messages_dropped(transfer.messages_dropped);
    if (lending_ != nullptr) {
      const lending::LendingServiceCounters lending = lending_->counters();
      counters.set_lending_answers(lending.answers);
      counters.set_lending_refusals(lending.refusals);
      counters.set_lending_connections_refused(lending.connections_refused);
    }
    if (creditors_ != nullptr) AddTo(creditors_->counters(), counters);
    return counters;
  }

  // All that heartbeats tell.
  void Publish(bool worked) {
    if (worked && !drain_begun_ && !heartbeats_.PublishDue()) return;
    if (creditors_ != nullptr) resources_->OnRoundTrips(creditors_->TakeRoundTrips());
    heartbeats_.Publish({.load = Load(),
                         .counters = Counters(),
                         .owner_counts = resources_->owner_counts(),
                         .blocks_lendable = core_->blocks_lendable()},
                        *resources_);
    // Not before the core handled the drain request: an idle node would end before routers hear
    // that it drains.
    if (drain_begun_) drained_.Set(core_->idle());
  }

  const NodeRuntimeOptions options_;
  // The engine thread's.
  const std::unique_ptr<engine::Engine> engine_;
  const std::unique_ptr<NodeResources> resources_;
  const std::unique_ptr<NodeCore> core_;
  NodeActions actions_;  // between calls only memory
  // Bound: the commands of the leases and exports that the pool has blocks for.
  std::deque<transfer::TransferCommand> transfer_backlog_;  // engine thread
  bool drain_begun_ = false;                                // engine thread
  BoundedQueue<InboxItem> inbox_;
  Heartbeats heartbeats_{options_.heartbeat_interval};
  std::unique_ptr<transfer::TransferService> transfer_;
  std::unique_ptr<storage::StorageService> storage_;   // null: KV lies in memory only
  std::unique_ptr<lending::LendingService> lending_;   // null, as the next: no lending
  std::unique_ptr<lending::CreditorLinks> creditors_;  // engine thread
  int64_t stored_blocks_max_ = 0;
  std::optional<ConstraintGate> gate_;  // nullopt on nodes without a vocabulary
  std::unique_ptr<RouterStreams> routers_;

  absl::Notification engine_placed_;
  std::atomic<bool> draining_{false};
  StepProgress progress_{options_.progress_deadline};
  SteadyFlag drained_;

  Thread engine_thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NodeRuntime>> NodeRuntime::Start(const NodeRuntimeOptions& options,
                                                                NodeParts parts) {
  auto runtime = std::make_unique<NodeRuntimeImpl>(options, parts);
  RETURN_IF_ERROR(runtime->StartThreads(std::move(parts.transport), std::move(parts.storage)));
  return runtime;
}

}  // namespace tandem::node
