#include "common/node/lender.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"

namespace tandem::node {

int64_t Lender::Reserve() const {
  return std::max(scheduler_.running_count() + 2, scheduler_.block_counts().total / 8);
}

absl::Status Lender::Check(const v1::LendBlocks& command, const lending::LoanKey& key,
                           bool indebted, int64_t blocks) const {
  const engine::EngineSpec& spec = scheduler_.spec();
  if (lend_blocks_max_ == 0 || spec.unit_tokens == 0)
    return absl::FailedPreconditionError("this node does not lend");
  const int64_t expected = int64_t{command.units()} * spec.unit_tokens / spec.layout.block_tokens;
  const int64_t units_left = int64_t{std::numeric_limits<int32_t>::max()} - command.first_unit();
  if (command.units() < 1 || command.first_unit() < 0 || command.units() > units_left ||
      blocks != expected) {
    return absl::InvalidArgumentError(absl::StrCat(command.units(), " units from ",
                                                   command.first_unit(), " in ", blocks,
                                                   " blocks, expected ", expected, " blocks"));
  }
  if (loans_.contains(key)) {
    return absl::AlreadyExistsError(
        absl::StrCat("loan ", key.loan.value(), " of ", key.debtor.node.value(), " exists"));
  }
  if (drains_ || ledger_.draining()) return absl::UnavailableError("this node is draining");
  if (indebted) return absl::ResourceExhaustedError("this node has borrowed itself");
  if (scheduler_.short_of_blocks())
    return absl::ResourceExhaustedError("this node's own sequences wait for blocks");
  if (loans_.size() >= kLoansMax || blocks_lent_ + blocks_per_unit() > lend_blocks_max_) {
    return absl::ResourceExhaustedError(absl::StrCat(loans_.size(), " loans of ", blocks_lent_,
                                                     " blocks are out, the limits are ", kLoansMax,
                                                     " and ", lend_blocks_max_));
  }
  return absl::OkStatus();
}

absl::StatusOr<Lender::Loan> Lender::Take(std::vector<kv::BlockHash> hashes) {
  kv::BlockPool& pool = scheduler_.pool();
  Loan loan;
  // Windowed layers are never lent.
  loan.blocks = pool.MatchBlocks(hashes);
  // With what is here pinned.
  const int64_t spare = std::max<int64_t>(0, pool.counts().available() - Reserve());
  const int64_t blocks = std::min({std::ssize(hashes), std::ssize(loan.blocks) + spare,
                                   lend_blocks_max_ - blocks_lent_}) /
                         blocks_per_unit() * blocks_per_unit();
  while (std::ssize(loan.blocks) > blocks) {
    pool.Unref(loan.blocks.back());
    loan.blocks.pop_back();
  }
  if (blocks == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a unit has ", blocks_per_unit(), " blocks, ",
                                                     spare, " are available beside ", Reserve(),
                                                     " for this node's own sequences"));
  }
  loan.held = std::ssize(loan.blocks);
  ASSIGN_OR_RETURN(const std::vector<BlockId> fresh, pool.Allocate(blocks - loan.held));
  loan.blocks.insert(loan.blocks.end(), fresh.begin(), fresh.end());
  hashes.resize(static_cast<size_t>(blocks));
  loan.hashes = std::move(hashes);
  loan.order = next_order_++;
  return loan;
}

void Lender::OnLendBlocks(RouterKey router, const v1::LendBlocks& command, bool indebted,
                          absl::Time now) {
  const lending::LoanKey key{
      {NodeId(command.debtor_node_id()), Incarnation(command.debtor_incarnation())},
      LoanId(command.loan())};
  v1::NodeEvent event;
  v1::LoanOffered& offered = *event.mutable_loan_offered();
  offered.set_debtor_node_id(command.debtor_node_id());
  offered.set_debtor_incarnation(command.debtor_incarnation());
  offered.set_loan(command.loan());
  const auto refuse = [&](const absl::Status& status) {
    *offered.mutable_status() = rpc::ToWire(status);
    ledger_.Send(router, std::move(event));
  };
  auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return refuse(hashes.status());
  const absl::Status fits = Check(command, key, indebted, std::ssize(*hashes));
  if (!fits.ok()) return refuse(fits);
  absl::StatusOr<Loan> loan = Take(*std::move(hashes));
  if (!loan.ok()) return refuse(loan.status());
  const auto units = static_cast<int32_t>(std::ssize(loan->blocks) / blocks_per_unit());
  offered.set_units(units);
  offered.set_held_blocks(static_cast<int32_t>(loan->held));
  if (loan->held < std::ssize(loan->blocks)) {
    loan->lease = ledger_.NewLease();
    by_lease_.emplace(*loan->lease, key);
    offered.set_lease_id(loan->lease->value());
    offered.set_epoch(1);
    ledger_.Transfer(
        transfer::OpenLease{.lease = *loan->lease,
                            .epoch = Epoch(1),
                            .first_ordinal = 0,
                            .blocks = {loan->blocks.begin() + loan->held, loan->blocks.end()},
                            .deadline = now + kFillTimeMax,
                            .window_first_ordinal = static_cast<int32_t>(loan->blocks.size())});
  }
  ledger_.Lend(lending::ServeLoan{.key = key,
                                  .units = {command.first_unit(), command.first_unit() + units},
                                  .blocks = loan->blocks});
  blocks_lent_ += std::ssize(loan->blocks);
  loans_.emplace(key, *std::move(loan));
  ledger_.Send(router, std::move(event));
}

void Lender::Handle(const transfer::LeaseInstalled& event) {
  const auto found = by_lease_.find(event.lease);
  if (found == by_lease_.end()) return;
  Loan& loan = loans_.at(found->second);
  // When this node has computed an equal block meanwhile, the received one stays unsealed.
  for (size_t i = static_cast<size_t>(loan.held); i < loan.blocks.size(); ++i)
    scheduler_.pool().Seal(loan.blocks[i], loan.hashes[i]);
  loan.lease.reset();
  loan.hashes.clear();
  by_lease_.erase(found);
  ledger_.counters().set_kv_bytes_received(ledger_.counters().kv_bytes_received() +
                                           event.bytes_received);
}

void Lender::Handle(const transfer::LeaseFailed& event) {
  const auto found = by_lease_.find(event.lease);
  if (found != by_lease_.end()) End(lending::LoanKey(found->second), event.status.ToString());
}

void Lender::Handle(const transfer::LeaseDrained& event) {
  const auto found = draining_.find(event.lease);
  if (found == draining_.end()) return;
  scheduler_.EndQuarantine(found->second);
  draining_.erase(found);
}

void Lender::End(const lending::LoanKey& key, const std::string& why) {
  const auto it = loans_.find(key);
  if (it == loans_.end() || TANDEM_MUTATED(kLoanKept)) return;
  Loan& loan = it->second;
  if (!TANDEM_MUTATED(kLoanServedTooLong)) ledger_.Lend(lending::StopServing{.key = key});
  blocks_lent_ -= std::ssize(loan.blocks);
  if (loan.lease.has_value()) {
    std::vector<BlockId>& filled = draining_[*loan.lease];
    filled.assign(loan.blocks.begin() + loan.held, loan.blocks.end());
    loan.blocks.resize(static_cast<size_t>(loan.held));
    for (const BlockId block : filled) scheduler_.pool().Quarantine(block);
    ledger_.Transfer(transfer::CloseLease{.lease = *loan.lease, .reason = why});
    by_lease_.erase(*loan.lease);
  }
  // Leaves first, so that a prefix stays in the cache longer than what follows it.
  for (auto block = loan.blocks.rbegin(); block != loan.blocks.rend(); ++block)
    scheduler_.pool().Unref(*block);
  if (why != "returned") {
    Log(LogLevel::kInfo, "ended a loan",
        {{"debtor", key.debtor.node.value()}, {"loan", key.loan.value()}, {"why", why}});
  }
  loans_.erase(it);
}

void Lender::Handle(const lending::LoanDamaged& event) {
  const auto it = loans_.find(event.key);
  if (it == loans_.end()) return;
  for (const BlockId block : it->second.blocks) scheduler_.pool().Forget(block);
  End(event.key, "a block is damaged");
}

void Lender::Recall(const lending::LoanKey& key, absl::Time now) {
  Loan& loan = loans_.at(key);
  if (loan.recalled_until.has_value()) return;
  loan.recalled_until = now + kNotice;
  ledger_.Lend(lending::RecallLoan{.key = key});
}

// One loan a tick: its blocks may be enough.
void Lender::OnTick(absl::Time now) {
  std::vector<lending::LoanKey> over;
  const std::pair<const lending::LoanKey, Loan>* youngest = nullptr;
  bool recalling = false;
  for (const auto& entry : loans_) {
    const Loan& loan = entry.second;
    if (loan.recalled_until.has_value()) {
      recalling = true;
      if (*loan.recalled_until <= now) over.push_back(entry.first);
    } else if (youngest == nullptr || loan.order > youngest->second.order) {
      youngest = &entry;
    }
  }
  if (scheduler_.short_of_blocks() && !recalling && youngest != nullptr)
    Recall(youngest->first, now);
  for (const lending::LoanKey& key : over) End(key, "recalled");
}

void Lender::BeginDrain(absl::Time now) {
  drains_ = true;
  for (const auto& [key, loan] : loans_) Recall(key, now);
}

}  // namespace tandem::node
