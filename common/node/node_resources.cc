#include "common/node/node_resources.h"

#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/rpc/convert.h"

namespace tandem::node {

void NodeResources::TakeActions(NodeActions& actions) {
  if (!stored_blocks_.enabled() && !scheduler_.has_block_events()) return ledger_.Take(actions);
  const StoredBlocks::Changes changes = stored_blocks_.Take(scheduler_.DrainBlockEvents());
  ledger_.Take(changes.memory, changes.stored_only, actions);
}

void NodeResources::Describe(v1::Registration& registration) const {
  const SchedulerOptions& options = scheduler_.options();
  const engine::EngineSpec& spec = options.spec;
  registration.set_model_name(spec.model_name);
  registration.set_model_fingerprint(spec.model_fingerprint);
  registration.set_numerics_id(spec.numerics_id);
  registration.set_context_tokens(spec.context_tokens);
  registration.set_vocab_size(spec.vocab_size);
  registration.set_block_tokens(spec.layout.block_tokens);
  registration.set_num_blocks(options.num_blocks);
  registration.set_kv_bytes_per_block(spec.layout.block_bytes());
  registration.set_kv_contents(spec.format.Contents());
  registration.set_kv_order(spec.format.order);
  registration.set_max_sequences(options.max_sequences);
  registration.set_max_batch_tokens(static_cast<int32_t>(options.max_batch_tokens));
  registration.set_queue_order(rpc::ToWire(options.queue_order));
  registration.set_cached_blocks(kv::PackHashes(CachedBlocks()));
}

std::vector<v1::NodeEvent> NodeResources::StoredOnlyEvents() const {
  std::vector<v1::NodeEvent> events;
  const auto hashes = stored_blocks_.StoredOnly();
  for (const storage::StoreTier tier : storage::kStoreTiers)
    if (!hashes[tier].empty()) events.push_back(StoredEvent(tier, hashes[tier]));
  return events;
}

std::vector<v1::NodeEvent> NodeResources::JoinEvents() const {
  std::vector<v1::NodeEvent> events = StoredOnlyEvents();
  if (ledger_.draining()) events.emplace(events.begin())->mutable_draining();
  return events;
}

void NodeResources::BeginRole(const StepRules& rules) {
  TANDEM_CHECK(idle(), "a core takes over while sequences, leases, exports or loans are left");
  scheduler_.set_rules(rules);
  borrower_.OnRoleBegun();
}

// ---- routers

void NodeResources::OnRouterJoined(RouterKey router) {
  prefix_migration_.OnRouterJoined(router);
  borrower_.OnRouterJoined(router);
}

void NodeResources::OnRouterLost(RouterKey router) {
  borrower_.OnRouterLost(router);
  prefix_migration_.OnRouterLost(router);
  fetched_prompts_.OnRouterLost(router);
  stored_blocks_.OnRouterLost(router);
}

bool NodeResources::OnCommand(RouterKey router, const v1::NodeCommand& command, absl::Time now) {
  if (command.has_send_blocks()) return OnSendBlocks(router, command.send_blocks(), now, now);
  if (command.has_adopt_blocks())
    prefix_migration_.OnAdoptBlocks(router, command.adopt_blocks(), now);
  else if (command.has_lend_blocks())
    OnLendBlocks(router, command.lend_blocks(), now);
  else if (command.has_loan_answer())
    borrower_.OnAnswer(command.loan_answer(), now);
  else if (command.has_borrow_blocks())
    borrower_.OnPlan(command.borrow_blocks(), now);
  return false;
}

void NodeResources::OnLendBlocks(RouterKey router, const v1::LendBlocks& command, absl::Time now) {
  if (command.stored() && stored_blocks_.WaitForLoad(router, command, now)) return;
  lender_.OnLendBlocks(router, command, borrower_.indebted(), now);
}

void NodeResources::Resubmit(const StoredBlocks::Ready& ready, absl::Time now) {
  if (ready.command.has_send_blocks())
    OnSendBlocks(ready.router, ready.command.send_blocks(), ready.arrived, now);
  else
    OnCommand(ready.router, ready.command, now);
}

bool NodeResources::OnSendBlocks(RouterKey router, const v1::SendBlocks& command,
                                 absl::Time arrived, absl::Time now) {
  if (!command.fetch()) {
    prefix_migration_.OnSendBlocks(router, command);
  } else if (command.hashes().empty()) {
    const LeaseId lease(command.lease_id());
    lender_.OnNoHolder(lease);
    borrower_.OnNoHolder(lease);
    return prefix_fetch_.OnNoHolder(lease);
  } else if (!stored_blocks_.WaitForLoad(router, command, arrived, now)) {
    prefix_fetch_.OnSendBlocks(command, now);
  }
  return false;
}

// ---- the KV plane, the lending plane

bool NodeResources::Handle(const transfer::LeaseInstalled& event) {
  prefix_migration_.Handle(event);
  lender_.Handle(event);
  borrower_.Handle(event);
  return prefix_fetch_.Handle(event);
}

bool NodeResources::Handle(const transfer::LeaseFailed& event) {
  prefix_migration_.Handle(event);
  lender_.Handle(event);
  borrower_.Handle(event);
  return prefix_fetch_.Handle(event);
}

void NodeResources::Handle(const transfer::LeaseDrained& event) {
  prefix_migration_.Handle(event);
  prefix_fetch_.Handle(event);
  lender_.Handle(event);
  borrower_.Handle(event);
}

void NodeResources::Handle(const transfer::ExportDone& event) {
  borrower_.Handle(event);
  prefix_migration_.Handle(event);
  prefix_fetch_.Handle(event);
}

void NodeResources::Handle(const transfer::ExportFailed& event, absl::Time now) {
  borrower_.Handle(event, now);
  prefix_migration_.Handle(event);
  prefix_fetch_.Handle(event);
}

void NodeResources::OnLending(const lending::LendingEvent& event, absl::Time now) {
  if (const auto* returned = std::get_if<lending::LoanReturned>(&event))
    return lender_.Handle(*returned);
  if (const auto* expired = std::get_if<lending::LoanExpired>(&event))
    return lender_.Handle(*expired);
  if (const auto* damaged = std::get_if<lending::LoanDamaged>(&event))
    return lender_.Handle(*damaged);
  if (const auto* lost = std::get_if<lending::LoanLost>(&event))
    return borrower_.Handle(*lost, now);
  if (const auto* late = std::get_if<lending::CreditorLate>(&event))
    return borrower_.Handle(*late, now);
  if (const auto* answers = std::get_if<lending::CreditorAnswers>(&event))
    return borrower_.Handle(*answers);
  borrower_.Handle(std::get<lending::LoanRecalled>(event), now);
}

// ---- time

std::vector<StoredBlocks::Ready> NodeResources::OnTick(absl::Time now) {
  prefix_migration_.OnTick(now);
  borrower_.OnTick(now);
  lender_.OnTick(now);
  return stored_blocks_.OnTick(now);
}

void NodeResources::BeginDrain(absl::Time now, absl::Duration time_left) {
  if (!ledger_.draining()) prefix_migration_.Offer(now, now + time_left);
  ledger_.BeginDrain();
  lender_.BeginDrain(now, time_left);
}

absl::Span<const engine::SequenceSlice> NodeResources::PlanStep(absl::Time now) {
  stored_blocks_.Resume(now);
  lender_.AnswerWaiting(borrower_.indebted(), now);
  const absl::Span<const engine::SequenceSlice> slices = scheduler_.PlanStep(now);
  scheduler_.meter().Start(scheduler_.planned_shape(), now);
  return slices;
}

const StepResult& NodeResources::FinishStep(
    const absl::StatusOr<std::vector<engine::SampledToken>>& result, absl::Time now) {
  scheduler_.meter().Stop(result.ok(), now);
  const StepResult& step = scheduler_.FinishStep(result);
  ledger_.counters().set_steps(ledger_.counters().steps() + 1);
  return step;
}

// ---- state

int64_t NodeResources::leases() const {
  return prefix_migration_.leases() + prefix_fetch_.leases() + lender_.leases() +
         borrower_.leases();
}

int64_t NodeResources::exports() const {
  return borrower_.exports() + prefix_migration_.exports() + prefix_fetch_.exports();
}

int64_t NodeResources::held() const {
  const kv::BlockPool::Counts blocks = ReportedBlocks(scheduler_);
  return blocks.used + blocks.quarantined + leases() + exports() + borrower_.blocks_owed();
}

v1::NodeLoad NodeResources::load() const {
  v1::NodeLoad load = LoadOf(scheduler_);
  load.set_leases(leases());
  load.set_exports(exports());
  load.set_blocks_lent(lender_.blocks_lent());
  stored_blocks_.AddTo(load);
  borrower_.AddTo(load);
  return load;
}

bool NodeResources::awaits_blocks() const {
  return leases() > 0 ||
         scheduler_.size() > scheduler_.running_count() + scheduler_.waiting_count();
}

bool NodeResources::idle() const {
  return scheduler_.size() == 0 && prefix_migration_.idle() && prefix_fetch_.idle() &&
         fetched_prompts_.idle() && stored_blocks_.idle() && borrower_.idle() && lender_.idle();
}

}  // namespace tandem::node
