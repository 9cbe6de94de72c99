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
namespace {

// A creditor's answer about a loan, without the fields of one that it takes on.
v1::NodeEvent OfferOf(const lending::LoanKey& key, const absl::Status& status) {
  v1::NodeEvent event;
  v1::LoanOffered& offered = *event.mutable_loan_offered();
  offered.set_debtor_node_id(key.debtor.node.value());
  offered.set_debtor_incarnation(key.debtor.incarnation.value());
  offered.set_loan(key.loan.value());
  if (!status.ok()) *offered.mutable_status() = rpc::ToWire(status);
  return event;
}

}  // namespace

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
  if (indebted && !TANDEM_MUTATED(kIndebtedLends))
    return absl::ResourceExhaustedError("this node has borrowed itself");
  if (scheduler_.short_of_blocks())
    return absl::ResourceExhaustedError("this node's own sequences wait for blocks");
  if (loans_.size() >= kLoansMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(loans_.size(), " loans are out, the limit is ", kLoansMax));
  }
  return absl::OkStatus();
}

void Lender::CountLent(absl::Span<const BlockId> blocks) {
  for (const BlockId block : blocks) ++lent_[block];
}

void Lender::UncountLent(absl::Span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    const auto it = lent_.find(block);
    if (--it->second == 0) lent_.erase(it);
  }
}

absl::StatusOr<Lender::Loan> Lender::Take(std::vector<kv::BlockHash> hashes, bool whole) {
  kv::BlockPool& pool = scheduler_.pool();
  Loan loan;
  // Windowed layers are never lent.
  loan.blocks = pool.MatchBlocks(hashes);
  // With what is here pinned.
  const int64_t spare = std::max<int64_t>(0, pool.counts().available() - Reserve());
  // Blocks of other loans are lent already: the debtors of two loans share them.
  const auto shared = std::find_if(loan.blocks.begin(), loan.blocks.end(),
                                   [&](BlockId block) { return !lent_.contains(block); }) -
                      loan.blocks.begin();
  const int64_t lendable = shared + lend_blocks_max_ - blocks_lent();
  int64_t blocks = std::min({std::ssize(hashes), std::ssize(loan.blocks) + spare, lendable}) /
                   blocks_per_unit() * blocks_per_unit();
  if (whole && blocks < std::ssize(hashes)) blocks = 0;
  while (std::ssize(loan.blocks) > blocks) {
    pool.Unref(loan.blocks.back());
    loan.blocks.pop_back();
  }
  if (blocks == 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        whole ? "the loan" : "a unit", " has ", whole ? std::ssize(hashes) : blocks_per_unit(),
        " blocks, ", spare, " are available beside ", Reserve(), " for this node's own sequences; ",
        blocks_lent(), " are lent, the limit is ", lend_blocks_max_));
  }
  loan.held = std::ssize(loan.blocks);
  ASSIGN_OR_RETURN(const std::vector<BlockId> fresh, pool.Allocate(blocks - loan.held));
  loan.blocks.insert(loan.blocks.end(), fresh.begin(), fresh.end());
  hashes.resize(static_cast<size_t>(blocks));
  loan.hashes = std::move(hashes);
  loan.order = next_order_++;
  return loan;
}

void Lender::OpenLease(const lending::LoanKey& key, Loan& loan, absl::Time deadline) {
  loan.lease = ledger_.NewLease();
  by_lease_.emplace(*loan.lease, key);
  ledger_.Transfer(
      transfer::OpenLease{.lease = *loan.lease,
                          .epoch = Epoch(1),
                          .first_ordinal = 0,
                          .blocks = {loan.blocks.begin() + loan.held, loan.blocks.end()},
                          .deadline = deadline,
                          .window_first_ordinal = static_cast<int32_t>(loan.blocks.size())});
}

void Lender::Fetch(RouterKey router, const v1::LendBlocks& command, const Loan& loan) {
  v1::NodeEvent event;
  v1::BlocksWanted& ask = *event.mutable_blocks_wanted();
  ask.set_from_node_id(command.from_node_id());
  ask.set_from_incarnation(command.from_incarnation());
  ask.set_lease_id(loan.lease->value());
  ask.set_epoch(1);
  ask.set_hashes(
      kv::PackHashes(absl::MakeConstSpan(loan.hashes).subspan(static_cast<size_t>(loan.held))));
  ask.set_fetch(true);
  ask.set_lent(true);
  ledger_.Send(router, std::move(event));
}

void Lender::Serve(const lending::LoanKey& key, const Loan& loan, int32_t first_unit,
                   int32_t units) {
  ledger_.Lend(lending::ServeLoan{
      .key = key, .units = {first_unit, first_unit + units}, .blocks = loan.blocks});
}

std::optional<LeaseId> Lender::Bringing(absl::Span<const kv::BlockHash> hashes) const {
  if (by_lease_.empty()) return std::nullopt;
  const auto missing = std::find_if(hashes.begin(), hashes.end(), [&](const kv::BlockHash& hash) {
    return !scheduler_.pool().Find(hash).has_value();
  });
  if (missing == hashes.end()) return std::nullopt;
  for (const auto& [lease, key] : by_lease_) {
    const std::vector<kv::BlockHash>& filled = loans_.at(key).hashes;
    if (std::find(filled.begin(), filled.end(), *missing) != filled.end()) return lease;
  }
  return std::nullopt;
}

void Lender::OnLendBlocks(RouterKey router, const v1::LendBlocks& command, bool indebted,
                          absl::Time now) {
  Answer(router, command, indebted, /*may_wait=*/true, now);
}

void Lender::AnswerWaiting(bool indebted, absl::Time now) {
  if (waiting_.empty()) return;
  const auto waits = [&](const Question& question) {
    return by_lease_.contains(question.lease) && now < question.until;
  };
  const auto due = std::stable_partition(waiting_.begin(), waiting_.end(), waits);
  const std::vector<Question> answered(due, waiting_.end());
  waiting_.erase(due, waiting_.end());
  for (const Question& question : answered)
    Answer(question.router, question.command, indebted, /*may_wait=*/false, now);
}

void Lender::Answer(RouterKey router, const v1::LendBlocks& command, bool indebted, bool may_wait,
                    absl::Time now) {
  const lending::LoanKey key{
      {NodeId(command.debtor_node_id()), Incarnation(command.debtor_incarnation())},
      LoanId(command.loan())};
  const auto refuse = [&](const absl::Status& status) {
    ledger_.Send(router, OfferOf(key, status));
  };
  const auto make_room = [&] { MakeRoom(key.debtor.node, command.arrived_us(), now); };
  auto hashes = kv::UnpackHashes(command.hashes());
  if (!hashes.ok()) return refuse(hashes.status());
  const absl::Status fits = Check(command, key, indebted, std::ssize(*hashes));
  // Beyond the limit no memory of this node's own would be lent.
  const bool may_lend = blocks_lent() + blocks_per_unit() <= lend_blocks_max_;
  if (absl::IsResourceExhausted(fits) && may_lend) make_room();
  if (!fits.ok()) return refuse(fits);
  if (const auto lease = Bringing(*hashes);
      may_wait && lease.has_value() && waiting_.size() < kWaitingMax &&
      std::ssize(*hashes) <= scheduler_.block_counts().total) {
    waiting_.push_back({router, command, *lease, now + kWaitMax});
    return;
  }
  const bool moves = !command.from_node_id().empty();
  absl::StatusOr<Loan> loan = Take(*std::move(hashes), /*whole=*/moves);
  if (!loan.ok()) {
    if (may_lend) make_room();
    return refuse(loan.status());
  }
  loan->arrived_us = command.arrived_us();
  const auto units = static_cast<int32_t>(std::ssize(loan->blocks) / blocks_per_unit());
  const bool lacks = loan->held < std::ssize(loan->blocks);
  v1::NodeEvent event = OfferOf(key, absl::OkStatus());
  v1::LoanOffered& offered = *event.mutable_loan_offered();
  offered.set_units(units);
  offered.set_held_blocks(static_cast<int32_t>(loan->held));
  const int64_t missing = std::ssize(loan->blocks) - loan->held;
  if (lacks)
    OpenLease(key, *loan, now + (moves ? kFetchTimeMax + BlocksTime(missing) : kFillTimeMax));
  if (moves && lacks) {
    loan->offer = Loan::Offer{.router = router, .first_unit = command.first_unit(), .units = units};
    Fetch(router, command, *loan);
  } else {
    if (lacks) offered.set_lease_id(loan->lease->value());
    if (lacks) offered.set_epoch(1);
    Serve(key, *loan, command.first_unit(), units);
    ledger_.Send(router, std::move(event));
  }
  CountLent(loan->blocks);
  loans_.emplace(key, *std::move(loan));
}

std::vector<Lender::LoanView> Lender::loans() const {
  std::vector<LoanView> views;
  views.reserve(loans_.size());
  for (const auto& [key, loan] : loans_) {
    views.push_back({.key = key,
                     .blocks = loan.blocks,
                     .hashes = loan.hashes,
                     .filling = loan.lease.has_value(),
                     .offered = loan.offer.has_value()});
  }
  return views;
}

bool Lender::MakeRoom(const NodeId& debtor, int64_t arrived_us, absl::Time now) {
  if (!scheduler_.HoldBack({arrived_us, debtor})) return false;
  Log(LogLevel::kInfo, "a sequence gives way to an older one of another node", {});
  held_until_ = now + kHeldMin;
  return true;
}

void Lender::Handle(const transfer::LeaseInstalled& event) {
  const auto found = by_lease_.find(event.lease);
  if (found == by_lease_.end()) return;
  Loan& loan = loans_.at(found->second);
  // When this node has computed an equal block meanwhile, the received one stays unsealed.
  for (size_t i = static_cast<size_t>(loan.held); i < loan.blocks.size(); ++i)
    scheduler_.pool().Seal(loan.blocks[i], loan.hashes[i], kv::ParentOf(loan.hashes, i));
  if (loan.offer.has_value()) {
    const Loan::Offer offer = *std::exchange(loan.offer, std::nullopt);
    Serve(found->second, loan, offer.first_unit, offer.units);
    v1::NodeEvent answer = OfferOf(found->second, absl::OkStatus());
    answer.mutable_loan_offered()->set_units(offer.units);
    answer.mutable_loan_offered()->set_held_blocks(static_cast<int32_t>(loan.blocks.size()));
    ledger_.Send(offer.router, std::move(answer));
  }
  loan.lease.reset();
  by_lease_.erase(found);
  ledger_.counters().set_kv_bytes_received(ledger_.counters().kv_bytes_received() +
                                           event.bytes_received);
}

void Lender::Handle(const transfer::LeaseFailed& event) {
  const auto found = by_lease_.find(event.lease);
  if (found != by_lease_.end()) End(lending::LoanKey(found->second), event.status.ToString());
}

void Lender::OnNoHolder(LeaseId lease) {
  const auto found = by_lease_.find(lease);
  if (found != by_lease_.end())
    End(lending::LoanKey(found->second), "the creditor that it leaves has left the fleet");
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
  if (loan.offer.has_value()) {
    ledger_.Send(loan.offer->router, OfferOf(key, absl::UnavailableError(why)));
  } else if (!TANDEM_MUTATED(kLoanServedTooLong)) {
    ledger_.Lend(lending::StopServing{.key = key});
  }
  UncountLent(loan.blocks);
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

void Lender::Recall(const lending::LoanKey& key, absl::Time until) {
  Loan& loan = loans_.at(key);
  if (loan.recalled_until.has_value()) return;
  if (loan.offer.has_value()) return End(lending::LoanKey(key), "this node lacks blocks itself");
  loan.recalled_until = until;
  // A block whose hash another block has, or took, is not sealed. That other may be gone, and the
  // next creditor asks for the blocks by their hashes.
  for (size_t i = 0; i < loan.blocks.size() && !loan.lease.has_value(); ++i)
    scheduler_.pool().SealAgain(loan.blocks[i], loan.hashes[i], kv::ParentOf(loan.hashes, i));
  ledger_.Lend(lending::RecallLoan{.key = key});
}

// One loan a tick: its blocks may be enough.
void Lender::OnTick(absl::Time now) {
  std::vector<lending::LoanKey> over;
  // Of the loans that no sequence needs if there are some, else of all.
  const std::pair<const lending::LoanKey, Loan>* youngest = nullptr;
  const auto place = [](const Loan& loan) { return std::pair(loan.arrived_us == 0, loan.order); };
  bool recalling = false;
  for (const auto& entry : loans_) {
    const Loan& loan = entry.second;
    if (loan.recalled_until.has_value()) {
      recalling = true;
      if (*loan.recalled_until <= now) over.push_back(entry.first);
    } else if (youngest == nullptr || place(loan) > place(youngest->second)) {
      youngest = &entry;
    }
  }
  if (scheduler_.short_of_blocks() && !recalling && youngest != nullptr &&
      !MakeRoom(youngest->first.debtor.node, youngest->second.arrived_us, now))
    Recall(youngest->first, now + kNotice + BlocksTime(std::ssize(youngest->second.blocks)));
  for (const lending::LoanKey& key : over) End(key, "recalled");
  EndHoldBack(now);
}

void Lender::EndHoldBack(absl::Time now) {
  if (!held_until_.has_value() || *held_until_ > now) return;
  SequenceAge oldest{std::numeric_limits<int64_t>::max(), NodeId()};
  for (const auto& [key, loan] : loans_)
    if (loan.arrived_us > 0) oldest = std::min(oldest, {loan.arrived_us, key.debtor.node});
  scheduler_.EndHoldBack(oldest);
  if (loans_.empty()) held_until_.reset();
}

void Lender::BeginDrain(absl::Time now, absl::Duration time_left) {
  drains_ = true;
  std::vector<lending::LoanKey> keys;
  for (const auto& [key, loan] : loans_) keys.push_back(key);
  for (const lending::LoanKey& key : keys) {
    const absl::Duration notice = kNotice + BlocksTime(std::ssize(loans_.at(key).blocks));
    Recall(key, now + std::max(notice, time_left / 2));
  }
}

}  // namespace tandem::node
