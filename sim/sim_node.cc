#include "sim/sim_node.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/node/step_probe.h"
#include "common/rpc/cost_convert.h"
#include "decode_node/decode_core.h"
#include "prefill_node/prefill_core.h"
#include "sim/checkers/bounds_checker.h"
#include "sim/checkers/drain_checker.h"

namespace tandem::sim {
namespace {

// A router's command as the timeline shows it.
std::string Describe(const v1::NodeCommand& command) {
  const auto leg = [](const v1::Leg& l) { return absl::StrCat(l.request_id(), "#", l.attempt()); };
  if (command.has_start_decode()) return absl::StrCat("Run ", leg(command.start_decode().leg()));
  if (command.has_prefill())
    return absl::StrCat("Prefill ", leg(command.prefill().leg()), " lease ",
                        command.prefill().lease_id(), " epoch ", command.prefill().epoch(), " to ",
                        command.prefill().receiver_node_id());
  if (command.has_new_epoch())
    return absl::StrCat("NewEpoch ", leg(command.new_epoch().leg()), " epoch ",
                        command.new_epoch().epoch());
  if (command.has_adopt_blocks())
    return absl::StrCat("Adopt ", command.adopt_blocks().hashes().size() / kv::kBlockHashBytes,
                        " blocks of ", command.adopt_blocks().from_node_id());
  if (command.has_lend_blocks())
    return absl::StrCat("Lend ", command.lend_blocks().units(), " units to ",
                        command.lend_blocks().debtor_node_id(), " as loan ",
                        command.lend_blocks().loan());
  if (command.has_loan_answer())
    return absl::StrCat("Loan ", command.loan_answer().loan(), " of ",
                        command.loan_answer().creditor_node_id(), " ",
                        command.loan_answer().status().message());
  if (command.has_send_blocks())
    return absl::StrCat("Send ", command.send_blocks().hashes().size() / kv::kBlockHashBytes,
                        " blocks to ", command.send_blocks().receiver_node_id());
  return absl::StrCat("Abort ", leg(command.abort().leg()), ": ", command.abort().reason());
}

std::string Describe(const v1::NodeEvent& event) {
  const auto leg = [](const v1::Leg& l) { return absl::StrCat(l.request_id(), "#", l.attempt()); };
  if (event.has_reserved())
    return absl::StrCat("reserved ", leg(event.reserved().leg()), " lease ",
                        event.reserved().lease_id(), " cached ", event.reserved().cached_tokens(),
                        " received ", event.reserved().received_tokens());
  if (event.has_refused())
    return absl::StrCat("refused ", leg(event.refused().leg()), ": ",
                        event.refused().status().message());
  if (event.has_installed()) return absl::StrCat("installed ", leg(event.installed().leg()));
  if (event.has_leg_finished()) return absl::StrCat("finished ", leg(event.leg_finished().leg()));
  if (event.has_leg_failed())
    return absl::StrCat(event.leg_failed().retained() ? "retained " : "failed ",
                        leg(event.leg_failed().leg()), ": ", event.leg_failed().status().message());
  if (event.has_loan_wanted())
    return absl::StrCat("wants loan ", event.loan_wanted().loan(), " for units from ",
                        event.loan_wanted().first_unit(), ": ", event.loan_wanted().units());
  if (event.has_prefill_finished())
    return absl::StrCat("prefilled ", leg(event.prefill_finished().leg()));
  return "";
}

}  // namespace

SimNode::SimNode(World& world, int id, std::string name, absl::Duration clock_offset,
                 SimNodeOptions options, RunLog& log)
    : Process(world, id, std::move(name), clock_offset),
      options_(std::move(options)),
      log_(log),
      storage_(MakeStorage()) {}

std::unique_ptr<NodeStorage> SimNode::MakeStorage() {
  if (!options_.seams.storage) return nullptr;
  return options_.seams.storage({.process = *this,
                                 .arena = [this]() -> kv::BlockArena& { return engine_->arena(); },
                                 .on_event =
                                     [this](storage::StorageEvent event) {
                                       Hop(from_disk_free_, [this, event = std::move(event)] {
                                         WhenIdle([this, event] {
                                           core_->OnStorage(event, Now());
                                           Pump();
                                         });
                                       });
                                     }});
}

void SimNode::OnStart() {
  const Topology& t = options_.topology;
  incarnation_ = Incarnation(static_cast<uint64_t>(absl::ToUnixMicros(Now())));
  engine_ = options_.seams.engine();
  engine_->SetWindowSlots(t.window_slots);
  TANDEM_CHECK(engine_->AllocateKv(t.blocks_per_node).ok());
  if (options_.seams.checked) {
    ownership_.emplace(log_, name(), engine_->spec().layout);
    // What earlier processes left on the disk is reused.
    if (!salt_ || storage_ == nullptr || !storage_->has_disk())
      salt_.emplace(log_, name(), options_.whole_sequences);
  }
  plane_ = options_.seams.kv_plane({.process = *this,
                                    .incarnation = incarnation_,
                                    .engine = *engine_,
                                    .observer = ownership_ ? &*ownership_ : nullptr,
                                    .on_activity = [this] { FromPlane(); }});
  if (storage_ != nullptr) storage_->OnStart();
  MakeCore();
  if (t.lend_blocks > 0) MakeLending();
  Tick();
}

void SimNode::MakeLending() {
  from_lending_free_ = world().now();
  lending_ = std::make_unique<SimLending>(
      SimLending::Site{
          .self = {NodeId(name()), incarnation_},
          .reach = [this](const NodeId& node) { return options_.lending_of(id(), node.value()); },
          .on_event =
              [this](lending::LendingEvent event) {
                Hop(from_lending_free_, [this, event = std::move(event)] {
                  core_->OnLending(event, Now());
                  Pump();
                });
              },
          .now = [this] { return world().now(); },
          .round_trip = 2 * absl::Microseconds(options_.topology.hop_us)},
      engine_->NewPartialAttention());
  engine_->SetRemoteAttention(lending_.get());
}

void SimNode::CheckLent() {
  const int64_t block_tokens = options_.topology.block_tokens;
  for (const engine::SequenceSlice& slice : step_) {
    const int64_t end = slice.num_computed + slice.num_new;
    for (int64_t i = slice.num_computed / block_tokens; i * block_tokens < end; ++i)
      if (lending_->Serves(slice.blocks[static_cast<size_t>(i)]))
        log_.Violate("ownership", absl::StrCat(name(), ": block ", slice.blocks[i].value(),
                                               " is written while it is lent"));
  }
}

void SimNode::MakeCore() {
  const Topology& t = options_.topology;
  node::SchedulerOptions scheduler{.spec = engine_->spec(),
                                   .self = NodeId(name()),
                                   .block_key = options_.seams.block_key,
                                   .num_blocks = t.blocks_per_node,
                                   .slots = t.window_slots > 0 ? engine_->arena().slots() : nullptr,
                                   .max_batch_tokens = t.max_batch_tokens,
                                   .max_sequences = static_cast<int32_t>(t.max_sequences),
                                   .borrows = t.lend_blocks > 0,
                                   .lend_blocks_max = t.lend_blocks,
                                   .itl_slo = absl::Microseconds(t.itl_slo_us)};
  if (options_.seams.probed) scheduler.step_cost = node::KnownStepCost(*options_.seams.probed);
  if (storage_ != nullptr)
    scheduler.stored_blocks =
        std::make_shared<const storage::StorageContents>(storage_->Contents());
  resources_ = std::make_unique<node::NodeResources>(scheduler);
  if (options_.role == v1::NODE_ROLE_PREFILL)
    core_ = std::make_unique<prefill_node::PrefillCore>(*resources_);
  else
    core_ = std::make_unique<decode_node::DecodeCore>(*resources_);
  stepping_ = false;
  inbox_.clear();
  to_plane_free_ = from_plane_free_ = next_heartbeat_ = world().now();
  from_disk_free_ = world().now();
  drain_ends_.reset();
  freed_room_ = {};
}

void SimNode::OnCrash() {
  for (ControlStream* stream : streams_) stream->OnNodeCrash();
  routers_.clear();
  core_.reset();
  resources_.reset();
  plane_.reset();
  lending_.reset();
  engine_.reset();
  if (storage_ != nullptr) storage_->OnCrash();
}

// ---- routers

v1::NodeMessage SimNode::MakeRegistration() const {
  v1::NodeMessage message;
  v1::Registration& registration = *message.mutable_registration();
  registration.set_node_id(name());
  registration.set_incarnation(incarnation_.value());
  registration.set_role(core_->role());
  resources_->Describe(registration);
  registration.set_transfer_address(plane_->address());
  registration.set_host(options_.seams.one_host ? "simulated" : name());
  registration.set_block_names(options_.seams.block_key.names());
  registration.set_stored_blocks_max(storage_ != nullptr ? storage_->slots() : 0);
  if (options_.topology.lend_blocks > 0) {
    registration.set_lending_address(absl::StrCat("unix:", name(), " tcp:", name()));
    registration.set_lend_blocks_max(options_.topology.lend_blocks);
    registration.set_lending_unit_tokens(engine_->spec().unit_tokens);
  }
  *message.mutable_load() = core_->load();
  return message;
}

void SimNode::OnStreamOpened(ControlStream& stream) {
  Pump();  // sends earlier events first: the snapshot contains their blocks
  const node::RouterKey key(next_router_++);
  core_->OnRouterJoined(key, Now());
  stream.ToRouter(std::make_unique<v1::NodeMessage>(MakeRegistration()));
  for (v1::NodeEvent& event : resources_->JoinEvents()) {
    v1::NodeMessage message;
    *message.add_events() = std::move(event);
    *message.mutable_load() = core_->load();
    stream.ToRouter(std::make_unique<v1::NodeMessage>(std::move(message)));
  }
  routers_[&stream] = key;
}

void SimNode::WhenIdle(Action action) {
  if (stepping_ && options_.seams.inbox_waits)
    inbox_.push_back(std::move(action));
  else
    action();
}

void SimNode::OnRouterMessage(ControlStream& stream, v1::RouterMessage message) {
  WhenIdle([this, &stream, message = std::move(message)] { OnCommands(stream, message); });
}

void SimNode::OnCommands(ControlStream& stream, const v1::RouterMessage& message) {
  const auto found = routers_.find(&stream);
  if (found == routers_.end()) return;
  for (const v1::NodeCommand& command : message.commands()) {
    if (salt_) CheckSalts(command);
    if (log_.timeline()) log_.Note(id(), Describe(command));
    core_->OnCommand(found->second, command, Now());
  }
  Pump();
}

void SimNode::CheckSalts(const v1::NodeCommand& command) {
  salt_->OnCommand(command);
  const auto adopt = [this](const std::string& node) {
    if (const SaltChecker* from = options_.salt_of(node)) salt_->OnAdopt(*from);
  };
  if (command.has_lend_blocks()) adopt(command.lend_blocks().debtor_node_id());
  if (command.has_adopt_blocks()) adopt(command.adopt_blocks().from_node_id());
  if (command.has_prefill() && command.prefill().fetch_blocks() > 0)
    adopt(command.prefill().fetch_from_node_id());
  if (command.has_start_decode() && command.start_decode().fetch_blocks() > 0)
    adopt(command.start_decode().fetch_from_node_id());
}

void SimNode::OnStreamEnded(ControlStream& stream) {
  const auto found = routers_.find(&stream);
  if (found == routers_.end()) return;
  const node::RouterKey key = found->second;
  routers_.erase(found);
  if (log_.timeline()) log_.Note(id(), "a router's stream ended");
  core_->OnRouterLost(key, Now());
  Pump();
}

void SimNode::BeginDrain() {
  core_->BeginDrain(Now(), drain_timeout() / 2);
  drain_ends_ = world().now() + drain_timeout();
  drain_began_ = RunningTime();
  Pump();
  Post(drain_timeout() / 2, [this] {
    core_->StartMigration(Now(), drain_timeout() / 2);
    Pump();
  });
}

void SimNode::CorruptBlock() {
  if (storage_ != nullptr && world().random().Below(2) == 0 && storage_->Damage()) return;
  kv::BlockArena& arena = engine_->arena();
  const BlockId block(static_cast<int32_t>(world().random().Below(arena.num_blocks())));
  // Not layer 0: later rows would be computed from the damaged row before the engine reads it back.
  const absl::Span<std::byte> bytes = arena.Block(1, block);
  bytes[world().random().Below(bytes.size())] ^= std::byte{0x10};
}

void SimNode::EndDrain() {
  // A pause takes time from the drain, and delays the begin of its migration.
  if (ownership_ && RunningTime() - drain_began_ >= drain_timeout()) {
    core_->OnTick(Now());
    CheckDrained(name(), *core_, *resources_, options_.all_served(), log_);
  }
  if (log_.timeline()) log_.Note(id(), "drained: the process ends");
  Crash();
}

void SimNode::Tick() {
  if (drain_ends_.has_value() && (core_->idle() || world().now() >= *drain_ends_))
    return EndDrain();
  for (ControlStream* stream : streams_) stream->Tick();
  core_->OnTick(Now());
  if (lending_) lending_->Tick();
  plane_->Tick(Now());
  FromPlane();
  Pump();
  if (ownership_) {
    const v1::NodeLoad load = core_->load();
    ownership_->OnLoad(load);
    TANDEM_CHECK(core_->held() == node::FreedRoom::HeldBy(load), name(), " holds ", core_->held(),
                 ", its load says ", node::FreedRoom::HeldBy(load));
    CheckNodeBounds(name(), options_.topology, plane_->counters(), log_);
  }
  if (world().now() >= next_heartbeat_) {
    next_heartbeat_ = world().now() + options_.seams.heartbeat_interval;
    v1::NodeMessage heartbeat;
    *heartbeat.mutable_load() = core_->load();
    *heartbeat.mutable_counters() = resources_->counters();
    heartbeat.set_blocks_lendable(core_->blocks_lendable());
    *heartbeat.mutable_step_cost() = rpc::ToWire(resources_->step_profile());
    if (const auto storage = resources_->storage_profile(); storage.has_value())
      *heartbeat.mutable_storage_cost() = rpc::ToWire(*storage);
    if (lending_) resources_->OnRoundTrips(lending_->TakeRoundTrips());
    *heartbeat.mutable_creditor_links() = resources_->creditor_links();
    for (ControlStream* stream : streams_)
      if (routers_.count(stream) > 0)
        stream->ToRouter(std::make_unique<v1::NodeMessage>(heartbeat));
  }
  Post(options_.seams.tick_interval * slowness(), [this] { Tick(); });
}

// ---- engine thread

void SimNode::Pump() {
  load_sent_ = false;
  Dispatch();
  StartStep();
  if (!stepping_) Dispatch();  // the plan may have asked for blocks to be read
  if (!load_sent_) AnnounceFreedRoom();
}

void SimNode::Dispatch() {
  TANDEM_CHECK(actions_.empty(), name(), ": an event came while the last one's actions go out");
  while (true) {
    resources_->TakeActions(actions_);
    if (actions_.empty()) break;
    for (const lending::LendingCommand& command : actions_.lending) {
      lending_->Handle(command);
      if (std::holds_alternative<lending::UseLoan>(command) &&
          OwesItself(name(), options_.creditors_of))
        log_.Violate("debts", absl::StrCat(name(), " owes memory to itself"));
    }
    for (transfer::TransferCommand& command : actions_.transfer) ToPlane(std::move(command));
    for (storage::StorageCommand& command : actions_.storage) storage_->Submit(std::move(command));
    SendEvents(actions_);
    // Events alone give no new actions.
    if (actions_.lending.empty() && actions_.transfer.empty() && actions_.storage.empty()) break;
  }
  actions_.clear();
}

void SimNode::SendEvents(node::NodeActions& actions) {
  // One for each router that hears something: few, so a list.
  absl::InlinedVector<std::pair<node::RouterKey, std::unique_ptr<v1::NodeMessage>>, 2> messages;
  const auto message_to = [&](node::RouterKey router) -> v1::NodeMessage& {
    for (auto& [key, message] : messages)
      if (key == router) return *message;
    return *messages.emplace_back(router, NewMessage()).second;
  };
  for (const v1::NodeEvent& event : actions.broadcast)
    for (const auto& [stream, key] : routers_) *message_to(key).add_events() = event;
  for (auto& [router, event] : actions.events) {
    loans_asked_ += event.has_loan_wanted() ? 1 : 0;
    if (salt_) salt_->OnEvent(event);
    if (log_.timeline())
      if (std::string text = Describe(event); !text.empty()) log_.Note(id(), std::move(text));
    *message_to(router).add_events() = std::move(event);
  }
  if (messages.empty()) return;
  v1::NodeLoad load = core_->load();
  freed_room_.OnReported(node::FreedRoom::HeldBy(load));
  load_sent_ = true;
  for (ControlStream* stream : streams_) {
    const auto router = routers_.find(stream);
    if (router == routers_.end()) continue;
    for (auto& [key, message] : messages) {
      if (key != router->second) continue;
      if (messages.size() == 1)
        *message->mutable_load() = std::move(load);  // mostly there is one router
      else
        *message->mutable_load() = load;
      stream->ToRouter(std::move(message));
    }
  }
}

std::unique_ptr<v1::NodeMessage> SimNode::NewMessage() {
  if (spare_messages_.empty()) return std::make_unique<v1::NodeMessage>();
  std::unique_ptr<v1::NodeMessage> message = std::move(spare_messages_.back());
  spare_messages_.pop_back();
  return message;
}

// Of the messages that a step sends; it has events and a load.
void SimNode::Recycle(std::unique_ptr<v1::NodeMessage> message) {
  const bool other = message->has_registration() || message->has_counters();
  if (!alive() || other || spare_messages_.size() >= kSpareMessagesMax) return;
  for (v1::NodeEvent& event : *message->mutable_events()) resources_->Recycle(std::move(event));
  while (!message->events().empty()) message->mutable_events()->RemoveLast();
  spare_messages_.push_back(std::move(message));
}

void SimNode::AnnounceFreedRoom() {
  if (!freed_room_.TakeDue(core_->held())) return;
  v1::NodeMessage message;
  *message.mutable_load() = core_->load();
  for (ControlStream* stream : streams_)
    if (routers_.contains(stream)) stream->ToRouter(std::make_unique<v1::NodeMessage>(message));
}

void SimNode::StartStep() {
  if (stepping_) return;
  step_ = core_->PlanStep(Now());
  if (step_.empty()) return;
  stepping_ = true;
  const absl::Duration time = StepTime();
  Post(slowness() == 1 ? time : time * slowness(), [this] { FinishStep(); });
}

absl::Duration SimNode::StepTime() {
  cost::StepShape shape;
  for (const engine::SequenceSlice& slice : step_)
    shape.Add(slice.num_computed, slice.num_new, slice.sample);
  step_shape_ = shape;
  step_time_ = options_.seams.step_time(shape);
  const bool asks = std::any_of(step_.begin(), step_.end(),
                                [](const auto& slice) { return slice.remote != nullptr; });
  if (asks) step_time_ += step_time_ * options_.topology.lent_step_percent / 100;
  return step_time_;
}

void SimNode::FinishStep() {
  if (ownership_) ownership_->OnStep(step_);
  if (lending_) CheckLent();
  const auto result = engine_->Step(step_, [this](int layer) { core_->OnLayerDone(layer); });
  if (log_.timeline() && !result.ok())
    log_.Note(id(), absl::StrCat("step failed: ", result.status().message()));
  if (result.ok()) work_.Add(step_shape_, step_time_);
  core_->OnStepDone(result, Now());
  if (options_.seams.between_steps == absl::ZeroDuration()) return EndStep();
  Dispatch();
  Post(options_.seams.between_steps, [this] { EndStep(); });
}

void SimNode::EndStep() {
  if (!inbox_.empty()) {
    Dispatch();
    for (Action& action : std::exchange(inbox_, {})) action();
  }
  stepping_ = false;
  Pump();
}

// ---- transfer thread

void SimNode::Hop(absl::Time& free_at, Action action) {
  free_at = std::max(
      free_at, world().now() + world().RandomDelay(absl::Microseconds(options_.topology.hop_us)));
  Post(free_at - world().now(), std::move(action));
}

void SimNode::ToPlane(transfer::TransferCommand command) {
  if (ownership_) ownership_->OnIssued(command);
  Hop(to_plane_free_, [this, command = std::move(command)] {
    if (ownership_) ownership_->OnHandled(command);
    plane_->Handle(command, Now());
    FromPlane();
  });
}

void SimNode::FromPlane() {
  for (transfer::TransferEvent& event : plane_->TakeEvents()) {
    // The blocks of a schedule are small. This makes one cost up to a tenth of a step.
    if (auto* done = std::get_if<transfer::ExportDone>(&event))
      done->processor_time = static_cast<double>(done->bytes_sent) * absl::Nanoseconds(200);
    if (ownership_) ownership_->OnEmitted(event);
    Hop(from_plane_free_, [this, event = std::move(event)]() mutable {
      WhenIdle([this, event = std::move(event)] {
        if (ownership_) ownership_->OnDelivered(event);
        core_->OnTransfer(event, Now());
        Pump();
      });
    });
  }
}

}  // namespace tandem::sim
