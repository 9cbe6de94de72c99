#include "sim/simulation.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/engine/hash/hash_engine.h"
#include "common/model/hash_model.h"
#include "sim/checkers/ledger_checker.h"
#include "sim/checkers/loan_checker.h"
#include "sim/checkers/progress_checker.h"
#include "sim/checkers/quiescence_checker.h"
#include "sim/control_stream.h"
#include "sim/endpoint_plane.h"
#include "sim/fault_injector.h"
#include "sim/sim_node.h"
#include "sim/sim_router.h"
#include "sim/sim_storage.h"
#include "sim/world/oracle.h"
#include "sim/world/virtual_network.h"

namespace tandem::sim {
namespace {

constexpr absl::Duration kDrainTime = absl::Milliseconds(600);  // of what an ended leg held
constexpr absl::Duration kPrefillDeadline = absl::Milliseconds(1500);

// The nodes that a node owes memory to. What it only keeps for the decode node of a split prompt is
// no debt.
std::set<std::string> OwedBy(SimNode& node) {
  std::set<LoanId> kept;
  for (const auto& [loan, until] : node.resources().borrower().split_loans_kept())
    kept.insert(loan);
  return node.lending()->creditors(kept);
}

router::RouterOptions CoreOptions(const Topology& topology) {
  router::RouterOptions options;
  options.router_id = "simulated";
  options.local_prefill_tokens_max = static_cast<int32_t>(topology.local_prefill_tokens);
  options.placement = router::kPlacementPolicies.at(topology.placement).second;
  options.plan_loans = topology.plan_loans != 0;
  if (topology.index_blocks > 0) options.index_blocks_max = topology.index_blocks;
  if (topology.router_sequences > 0) options.requests_max = topology.router_sequences;
  options.heartbeat_interval = kHeartbeatInterval;
  options.node_lost_after = absl::Milliseconds(400);
  options.queue_deadline = absl::Seconds(3);
  options.no_node_deadline = absl::Seconds(1);
  options.reserve_deadline = absl::Milliseconds(400);
  options.prefill_deadline = kPrefillDeadline;
  options.token_deadline = absl::Milliseconds(800);
  return options;
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, bool timeline);
  SimReport Run();

 private:
  SimReport Report();
  NodeSeams MakeSeams();
  void AddProcesses();
  void AddStreams();
  void Cover(const Fault& fault);
  void TickClients();
  void TickLoans();
  void CheckLedgers();
  void CheckQuiet();
  absl::Duration ClockOffset() {
    return world_.RandomDelay(absl::Microseconds(schedule_.topology.clock_skew_us));
  }

  const Schedule& schedule_;
  World world_;
  RunLog log_;
  LoanChecker loans_;
  LedgerChecker ledgers_;
  SimClients clients_;
  VirtualNetwork network_;
  std::vector<std::unique_ptr<SimRouter>> routers_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::vector<std::unique_ptr<ControlStream>> streams_;
  FaultInjector faults_;
  Coverage coverage_ = {};
};

NetworkOptions NetworkOf(const Topology& t) {
  return {.processes = static_cast<int>(t.processes()),
          .delay_max = absl::Microseconds(t.kv_us),
          .bytes_per_second = static_cast<double>(t.kv_bytes_per_second),
          .rendezvous = t.rendezvous != 0,
          .hold_when_blocked = t.hold_frames != 0};
}

LoanLimits LimitsOf(const Topology& t) {
  const int64_t rows = t.max_batch_tokens + t.max_sequences;
  const absl::Duration step = absl::Microseconds(t.step_us + t.row_us * rows);
  return {.lease_time = SimLending::kLeaseTime,
          .tick = kTickInterval,
          .hop = absl::Microseconds(t.hop_us),
          .step = step + step * t.lent_step_percent / 100};
}

Simulation::Simulation(const Schedule& schedule, bool timeline)
    : schedule_(schedule),
      world_(schedule.seed),
      log_(world_, timeline),
      loans_(log_, LimitsOf(schedule.topology)),
      ledgers_(log_),
      clients_(world_, log_),
      network_(world_, NetworkOf(schedule.topology)),
      faults_(world_, log_, {schedule.topology, routers_, nodes_, streams_, clients_, network_}) {
  AddProcesses();
  AddStreams();
  for (const auto& router : routers_) router->Start();
  for (const auto& node : nodes_) node->Start();
  for (const SimRequest& request : schedule_.requests)
    clients_.Add(request, EngineOptions(schedule_.topology));
  for (const Fault& fault : schedule_.faults)
    world_.After(absl::Microseconds(fault.at_us), [this, &fault] {
      Cover(fault);
      faults_.Inject(fault);
    });
  TickClients();
  if (schedule_.topology.lend_blocks > 0) TickLoans();
}

// What rows cost where row_us is not 0.
cost::StepProfile RowPrices(const Topology& t) {
  const auto row_us = static_cast<double>(t.row_us);
  return {.step_us = static_cast<double>(t.step_us),
          .prompt_row_us = row_us,
          .generated_row_us = row_us};
}

NodeSeams Simulation::MakeSeams() {
  const Topology& t = schedule_.topology;
  NodeSeams seams;
  seams.engine = [&t] {
    auto engine = engine::NewHashEngine(EngineOptions(t));
    TANDEM_CHECK(engine.ok(), engine.status().ToString());
    return *std::move(engine);
  };
  seams.kv_plane = [this, &t](KvPlaneSite site) {
    return std::make_unique<EndpointPlane>(network_, t, std::move(site));
  };
  seams.storage = [this, &t](StorageSite site) {
    return SimStorage::Create(world_, t, std::move(site));
  };
  if (t.row_us != 0) seams.probed = RowPrices(t);
  seams.step_time = [this, &t](const cost::StepShape& shape) {
    const absl::Duration random = world_.RandomDelay(absl::Microseconds(t.step_us));
    if (t.row_us == 0) return random;
    return absl::Microseconds(RowPrices(t).Predict(shape).us);
  };
  return seams;
}

void Simulation::AddProcesses() {
  const Topology& t = schedule_.topology;
  const engine::HashEngineOptions engine = EngineOptions(t);
  SimRouterOptions router;
  router.core = CoreOptions(t);
  router.model = {.name = std::string(model::kHashModelName),
                  .fingerprint = std::string(model::kHashModelFingerprint),
                  .vocab_size = engine.vocab_size,
                  .context_tokens = engine.context_tokens};
  router.requests_max = static_cast<int64_t>(schedule_.requests.size());
  for (const SimRequest& request : schedule_.requests)
    router.sequences_max += std::max(request.answers, request.beams);
  router.sequences_max = std::min(router.sequences_max, router.core.requests_max);
  int id = 0;
  std::vector<SimRouter*> routers;
  for (int i = 0; i < t.routers; ++i) {
    routers_.push_back(std::make_unique<SimRouter>(
        world_, id++, absl::StrCat("router-", i), ClockOffset(), router, log_,
        [this](SimRouter& from, const RequestId& request, const router::ClientEvent& event) {
          clients_.OnEvent(from, request, event);
        }));
    routers.push_back(routers_.back().get());
  }
  clients_.SetRouters(std::move(routers));
  const auto add = [&](v1::NodeRole role, const std::string& name) {
    SimNodeOptions node{
        .role = role,
        .topology = t,
        .seams = MakeSeams(),
        .whole_sequences = [this](const std::string& r) { return clients_.WholeSequences(r); },
        .salt_of = [this](const std::string& from) -> const SaltChecker* {
          for (const auto& other : nodes_)
            if (other->name() == from) return &other->salt();
          return nullptr;
        },
        .lending_of = [this](int from, const std::string& node) -> SimLending::Reached {
          for (const auto& other : nodes_) {
            if (other->name() != node || !other->alive()) continue;
            // One that is stopped answers nothing.
            const bool silent = other->paused() || network_.Blocked(from, other->id()) ||
                                network_.Blocked(other->id(), from);
            return {.plane = silent ? nullptr : other->lending(), .silent = silent};
          }
          return {};
        },
        .creditors_of =
            [this](const std::string& debtor) {
              for (const auto& other : nodes_)
                if (other->name() == debtor && other->alive() && other->lending() != nullptr)
                  return OwedBy(*other);
              return std::set<std::string>();
            },
        .all_served = [this] { return clients_.AllSettled() && !network_.AnyBlocked(); }};
    nodes_.push_back(
        std::make_unique<SimNode>(world_, id++, name, ClockOffset(), std::move(node), log_));
  };
  for (int i = 0; i < t.prefill_nodes; ++i) add(v1::NODE_ROLE_PREFILL, absl::StrCat("prefill-", i));
  for (int i = 0; i < t.decode_nodes; ++i) add(v1::NODE_ROLE_DECODE, absl::StrCat("decode-", i));
}

void Simulation::AddStreams() {
  const ControlStream::Options options{.delay_max =
                                           absl::Microseconds(schedule_.topology.control_us)};
  for (const auto& router : routers_) {
    for (const auto& node : nodes_) {
      streams_.push_back(
          std::make_unique<ControlStream>(world_, network_, options, *router, *node));
      router->AddStream(*streams_.back());
      node->AddStream(*streams_.back());
    }
  }
}

void Simulation::TickClients() {
  clients_.Tick();
  world_.After(absl::Milliseconds(100), [this] { TickClients(); });
}

void Simulation::TickLoans() {
  const bool none = std::all_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
    return !node->alive() || !node->has_loans();
  });
  if (!none || loans_.follows_any() || ledgers_.follows_any()) {
    std::vector<LoanParty> parties;
    for (const auto& node : nodes_) {
      if (!node->alive()) continue;
      LoanParty& party = parties.emplace_back();
      party.resources = &node->resources();
      party.running = node->RunningTime();
      party.slowness_max = node->slowness_max();
      node->lending()->AddTo(party);
    }
    loans_.Check(parties);
    CheckLedgers();
  }
  world_.After(kTickInterval, [this] { TickLoans(); });
}

void Simulation::CheckLedgers() {
  for (size_t i = 0; i < streams_.size(); ++i) {  // as AddStreams made them
    const SimRouter& router = *routers_[i / nodes_.size()];
    const SimNode& node = *nodes_[i % nodes_.size()];
    const ControlStream& stream = *streams_[i];
    const uint64_t connection = stream.node_connection();
    if (!router.alive() || !node.alive() || connection == 0) continue;
    v1::NodeLoad owed, known;
    node.resources().borrower().AddTo(owed);
    for (const router::Node* joined : router.core().fleet().by_slot())
      if (joined != nullptr && joined->id.value() == node.name())
        *known.mutable_debts() = joined->load.debts();
    const Topology& t = schedule_.topology;
    ledgers_.Check({.router = router.name(),
                    .node = node.name(),
                    .connection = connection,
                    .reachable = connection == stream.router_connection() && stream.Healthy(),
                    .running = node.RunningTime(),
                    .heartbeat = kHeartbeatInterval + kTickInterval * node.slowness_max() +
                                 ControlStream::kHoldStep +
                                 absl::Microseconds(t.control_us) * router.slowness_max()},
                   owed, known);
  }
}

// ---- faults

void Simulation::Cover(const Fault& fault) {
  auto& row = coverage_[static_cast<int>(fault.kind)];
  for (const auto& router : routers_) {
    if (!router->alive()) continue;
    const auto states = router->core().sequences_by_state();
    for (size_t i = 0; i < 5; ++i) row[i] += states[i] > 0 ? 1 : 0;
  }
  const bool network =
      fault.kind >= FaultKind::kLoseFrames && fault.kind <= FaultKind::kDelayFrames;
  for (const auto& node : nodes_) {
    if (!node->alive()) continue;
    if (!network && node->id() != fault.target && node->id() != fault.other) continue;
    const KvTransferStates s = node->kv_transfer_states();
    const int64_t counts[] = {s.reserved, s.filling,  s.draining, s.planned,
                              s.pushing,  s.finished, s.cancelled};
    for (size_t i = 0; i < 7; ++i) row[5 + i] += counts[i] > 0 ? 1 : 0;
  }
}

// ---- the run

void Simulation::CheckQuiet() {
  for (const auto& node : nodes_)
    if (node->alive())
      CheckNodeQuiet(node->name(), node->core(), node->resources(), node->plane().counters(), log_);
  std::map<std::string, const node::NodeResources*> all;
  for (const auto& node : nodes_)
    if (node->alive()) all.emplace(node->name(), &node->resources());
  for (const auto& router : routers_) {
    if (!router->alive()) continue;
    CheckRouterQuiet(router->name(), router->core(), router->Now(), log_);
    if (CheckFleet(router->name(), router->core(), all, log_))
      CheckIndex(router->name(), router->core(), all, schedule_.topology.index_blocks > 0, log_);
  }
}

SimReport Simulation::Run() {
  const absl::Time start = world_.now();
  int64_t last_us = 0;
  for (const SimRequest& request : schedule_.requests) last_us = std::max(last_us, request.at_us);
  for (const Fault& fault : schedule_.faults) {
    // A slow process's next tick may be that late.
    const int64_t tick_us = fault.kind == FaultKind::kSlow
                                ? fault.amount * absl::ToInt64Microseconds(kTickInterval)
                                : 0;
    last_us = std::max(last_us, fault.at_us + LastsUs(fault, schedule_.topology) + tick_us);
  }
  const absl::Time last = start + absl::Microseconds(last_us);
  world_.RunUntil(last);
  while (!clients_.AllSettled() && world_.now() < last + kProgressBound)
    world_.RunUntil(world_.now() + absl::Milliseconds(5));
  CheckProgress(clients_.Unsettled(), world_.now() - last, log_);
  // A fetch whose prompt no leg waits for any more runs to its own deadline, a quarter of its
  // prompt's, and its lease ends after that.
  world_.RunUntil(world_.now() + kPrefillDeadline / 4 + kDrainTime);
  // Loans of debtors that are gone expire, those of split prompts are returned, blocks drain.
  if (schedule_.topology.lend_blocks > 0)
    world_.RunUntil(world_.now() + SimLending::kLeaseTime + node::Borrower::kSplitLoansKept +
                    absl::Milliseconds(500));
  if (clients_.AllSettled()) CheckQuiet();
  if (schedule_.faults.empty() && clients_.counts().failed > 0)
    log_.Violate("progress", "a request failed without any fault");
  return Report();
}

SimReport Simulation::Report() {
  SimReport report;
  report.answered_us = clients_.AnsweredUs();
  report.violations = log_.violations();
  report.timeline = log_.TakeEntries();
  for (const auto& router : routers_) {
    report.process_names.push_back(router->name());
    if (!router->alive()) continue;
    const v1::RouterStatus status = router->core().GetStatus(router->Now()).router();
    report.sequences_migrated += status.sequences_migrated();
    report.kv_tokens_moved += status.kv_tokens_moved();
    report.loans_planned += router->core().loans_planned();
    for (const router::Node* debtor : router->core().fleet().nodes())
      for (const auto& [creditor, link] : debtor->creditor_links)
        report.links_measured += link.cost.blocks.samples > 0 && link.cost.AskUs() > 0;
  }
  for (const auto& node : nodes_) {
    report.process_names.push_back(node->name());
    report.rows_computed += node->work().prompt_rows + node->work().generated_rows;
    report.mixed_step_us_max =
        std::max(report.mixed_step_us_max, absl::ToInt64Microseconds(node->work().mixed_step_max));
    report.blocks_adopted += node->blocks_adopted();
    report.blocks_fetched += node->blocks_fetched();
    report.part_tokens_fetched += node->part_tokens_fetched();
    report.blocks_loaded += node->blocks_loaded();
    report.blocks_read_from_host += node->blocks_read_from_host();
    report.loans_asked += node->loans_asked();
    report.postponed += node->postponed();
    report.units_lent += node->units_lent();
    report.loans_lost += node->loans_lost();
    report.units_regained += node->units_regained();
    report.rebuilds_begun += node->rebuilds().begun;
    report.rebuilds_done += node->rebuilds().done;
    report.rows_rebuilt += node->rebuilds().rows;
    report.rebuild_reads += node->rebuilds().reads;
    report.loads_given_up += node->loads_given_up();
    report.loans_moved += node->loans_moved();
    report.loans_home += node->loans_home();
    report.loans_taken_over += node->loans_taken_over();
    if (!node->alive() || node->core().role() != v1::NODE_ROLE_DECODE) continue;
    const v1::TokensBySource tokens = node->resources().counters().prompt_tokens();
    report.tokens_cached += tokens.cached();
    report.tokens_received += tokens.received();
    report.tokens_computed += tokens.computed();
  }
  report.clients = clients_.counts();
  report.coverage = coverage_;
  report.events = world_.events_run();
  report.virtual_us = log_.now_us();
  return report;
}

}  // namespace

SimReport RunSchedule(const Schedule& schedule, bool timeline) {
  return Simulation(schedule, timeline).Run();
}

}  // namespace tandem::sim
