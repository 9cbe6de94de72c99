#include "sim/sim_cluster.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/hash_model.h"
#include "common/node/sequence_scheduler.h"
#include "decode_node/decode_core.h"
#include "prefill_node/prefill_core.h"

namespace tandem::sim {
namespace {

constexpr absl::Duration kTickInterval = absl::Milliseconds(10);
constexpr uint64_t kOnlyRouter = 1;

}  // namespace

SimNode::SimNode(SimCluster& cluster, router::NodeKey key, v1::NodeRole role,
                 const std::string& name)
    : cluster_(cluster), key_(key), name_(name), incarnation_(cluster.world_.random().Next()) {
  const SimClusterOptions& options = cluster.options_;
  auto engine = engine::NewHashEngine(options.engine);
  TANDEM_CHECK(engine.ok(), engine.status().ToString());
  engine_ = *std::move(engine);
  TANDEM_CHECK(engine_->AllocateKv(options.blocks_per_node).ok());
  transport_ = cluster.network_.NewTransport(name);
  transfer::HandoffOptions handoff;
  handoff.incarnation = incarnation_;
  handoff.fleet_secret = "simulated";
  endpoint_ = transfer::HandoffEndpoint::Create(handoff, engine_->arena(), *transport_);
  transport_->SetOnActivity([this] { Pump(); });
  const node::SchedulerOptions scheduler{.spec = engine_->spec(),
                                         .num_blocks = options.blocks_per_node,
                                         .max_batch_tokens = options.max_batch_tokens,
                                         .max_sequences = options.max_sequences};
  if (role == v1::NODE_ROLE_PREFILL) {
    core_ = std::make_unique<prefill_node::PrefillCore>(scheduler);
  } else {
    core_ = std::make_unique<decode_node::DecodeCore>(scheduler);
  }
}

void SimNode::Join() {
  const engine::EngineSpec& spec = engine_->spec();
  v1::NodeMessage message;
  v1::Registration& registration = *message.mutable_registration();
  registration.set_node_id(name_);
  registration.set_incarnation(incarnation_.value());
  registration.set_role(core_->role());
  registration.set_model_name(spec.model_name);
  registration.set_model_fingerprint(spec.model_fingerprint);
  registration.set_numerics_id(spec.numerics_id);
  registration.set_context_tokens(spec.context_tokens);
  registration.set_vocab_size(spec.vocab_size);
  registration.set_block_tokens(spec.layout.block_tokens);
  registration.set_num_blocks(cluster_.options_.blocks_per_node);
  registration.set_kv_bytes_per_block(spec.layout.block_bytes());
  registration.set_transfer_address(name_);
  registration.set_host("simulated");
  registration.set_max_sequences(cluster_.options_.max_sequences);
  *message.mutable_load() = core_->load();
  core_->OnRouterJoined(node::RouterKey(kOnlyRouter), cluster_.world_.now());
  cluster_.SendInOrder(to_router_free_, [this, message] { cluster_.FromNode(key_, message); });
  Tick();
}

void SimNode::OnRouterMessage(const v1::RouterMessage& message) {
  for (const v1::NodeCommand& command : message.commands()) {
    core_->OnCommand(node::RouterKey(kOnlyRouter), command, cluster_.world_.now());
  }
  Pump();
}

void SimNode::Pump() {
  if (pumping_) return;
  pumping_ = true;
  const absl::Time now = cluster_.world_.now();
  while (true) {
    endpoint_->Tick(now);
    const std::vector<transfer::TransferEvent> events = endpoint_->TakeEvents();
    for (const transfer::TransferEvent& event : events) core_->OnTransfer(event, now);
    node::NodeActions actions = core_->TakeActions();
    if (events.empty() && actions.empty()) break;
    for (const transfer::TransferCommand& command : actions.transfer)
      endpoint_->Handle(command, now);
    v1::NodeMessage message;
    for (v1::NodeEvent& event : actions.broadcast) *message.add_events() = std::move(event);
    for (auto& [router, event] : actions.events) *message.add_events() = std::move(event);
    if (message.events().empty()) continue;
    *message.mutable_load() = core_->load();
    cluster_.SendInOrder(to_router_free_, [this, message] { cluster_.FromNode(key_, message); });
  }
  pumping_ = false;
  StartStep();
}

void SimNode::StartStep() {
  if (stepping_) return;
  step_ = core_->PlanStep(cluster_.world_.now());
  if (step_.empty()) return;
  stepping_ = true;
  cluster_.world_.After(cluster_.world_.RandomDelay(cluster_.options_.step_time_max),
                        [this] { FinishStep(); });
}

void SimNode::FinishStep() {
  const auto result = engine_->Step(step_, [this](int layer) { core_->OnLayerDone(layer); });
  stepping_ = false;
  core_->OnStepDone(result, cluster_.world_.now());
  Pump();
}

void SimNode::Tick() {
  core_->OnTick(cluster_.world_.now());
  Pump();
  v1::NodeMessage heartbeat;
  *heartbeat.mutable_load() = core_->load();
  *heartbeat.mutable_counters() = core_->counters();
  cluster_.SendInOrder(to_router_free_, [this, heartbeat] { cluster_.FromNode(key_, heartbeat); });
  cluster_.world_.After(kTickInterval, [this] { Tick(); });
}

SimCluster::SimCluster(World& world, const SimClusterOptions& options)
    : world_(world), options_(options), network_(world, options.kv_faults) {
  router::ModelIdentity identity;
  identity.name = std::string(model::kHashModelName);
  identity.fingerprint = std::string(model::kHashModelFingerprint);
  identity.vocab_size = options.engine.vocab_size;
  identity.context_tokens = options.engine.context_tokens;
  router_ = router::RouterCore::Create(options.router, identity, world.random());
  uint64_t key = 1;
  const auto add = [&](v1::NodeRole role, const std::string& name) {
    const router::NodeKey node_key(key++);
    nodes_[node_key] = std::make_unique<SimNode>(*this, node_key, role, name);
    nodes_[node_key]->Join();
  };
  for (int i = 0; i < options.prefill_nodes; ++i)
    add(v1::NODE_ROLE_PREFILL, absl::StrCat("prefill-", i));
  for (int i = 0; i < options.decode_nodes; ++i)
    add(v1::NODE_ROLE_DECODE, absl::StrCat("decode-", i));
  TickRouter();
}

SimCluster::~SimCluster() = default;

std::vector<SimNode*> SimCluster::nodes() {
  std::vector<SimNode*> all;
  for (auto& [key, node] : nodes_) all.push_back(node.get());
  return all;
}

absl::Status SimCluster::Submit(router::RequestInput input) {
  clients_[input.id];
  const absl::Status status = router_->Submit(std::move(input), world_.now());
  PumpRouter();
  return status;
}

void SimCluster::Cancel(const RequestId& id) {
  router_->Finish(id, request::FinishReason::kAborted, world_.now());
  PumpRouter();
}

void SimCluster::SendInOrder(absl::Time& link_free, absl::AnyInvocable<void()> deliver) {
  const absl::Time at =
      std::max(link_free, world_.now() + world_.RandomDelay(options_.control_delay_max));
  link_free = at;
  world_.After(at - world_.now(), std::move(deliver));
}

void SimCluster::FromNode(router::NodeKey node, v1::NodeMessage message) {
  if (message.has_registration()) {
    const auto welcome = router_->NodeJoined(node, message.registration(), world_.now());
    TANDEM_CHECK(welcome.ok(), welcome.status().ToString());
  } else {
    router_->OnNodeMessage(node, message, world_.now());
  }
  PumpRouter();
}

void SimCluster::PumpRouter() {
  router::RouterActions actions = router_->TakeActions();
  for (auto& [key, command] : actions.commands) {
    SimNode& node = *nodes_.at(key);
    v1::RouterMessage message;
    *message.add_commands() = std::move(command);
    SendInOrder(node.to_node_free_, [&node, message] { node.OnRouterMessage(message); });
  }
  for (auto& [id, event] : actions.client_events) {
    ClientView& view = clients_[id];
    if (const auto* tokens = std::get_if<router::TokensReady>(&event)) {
      for (const v1::GeneratedToken& token : tokens->tokens) {
        view.out_of_order |= token.index() != static_cast<int>(view.tokens.size()) || view.ends > 0;
        view.tokens.push_back(token.token_id());
      }
    } else if (const auto* done = std::get_if<router::RequestDone>(&event)) {
      ++view.ends;
      view.done = *done;
    } else {
      ++view.ends;
      view.status = std::get<router::RequestFailed>(event).status;
    }
  }
}

void SimCluster::TickRouter() {
  router_->OnTick(world_.now());
  PumpRouter();
  world_.After(kTickInterval, [this] { TickRouter(); });
}

}  // namespace tandem::sim
