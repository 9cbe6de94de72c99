#include "common/lending/loan_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace tandem::lending {

void LoanTable::Serve(const ServeLoan& command, absl::Time now) {
  const int64_t units = command.units.size();
  TANDEM_CHECK(units > 0 && !command.blocks.empty() && command.blocks.size() % units == 0, "loan ",
               command.key.loan.value(), " has ", command.blocks.size(), " blocks in ", units,
               " units");
  absl::MutexLock lock(&mutex_);
  DebtorLoans& loans = debtors_[command.key.debtor];
  const auto [it, is_new] = loans.try_emplace(command.key.loan);
  Loan& loan = it->second;
  if (is_new) {
    const bool has_room = count_ < kLoansMax && loans.size() <= kLoansOfDebtorMax;
    loan.units = command.units;
    loan.blocks = std::make_shared<const std::vector<BlockId>>(command.blocks);
    loan.heard = now;
    ++count_;
    if (!has_room) {
      loan.has_ended = true;
      ended_.push_back(LoanExpired{.key = command.key});
      Log(LogLevel::kWarning, "too many loans: one ended at once",
          {{"debtor", command.key.debtor.node.value()},
           {"loans_of_debtor", loans.size()},
           {"loans", count_}});
    }
    return;
  }
  TANDEM_CHECK(command.units.first == loan.units.end &&
                   loan.blocks->size() * units == command.blocks.size() * loan.units.size(),
               "loan ", command.key.loan.value(), " has units up to ", loan.units.end,
               ", more begin at ", command.units.first);
  // A new vector, because the lending thread may be reading the old one.
  auto blocks = std::make_shared<std::vector<BlockId>>();
  blocks->reserve(loan.blocks->size() + command.blocks.size());
  blocks->insert(blocks->end(), loan.blocks->begin(), loan.blocks->end());
  blocks->insert(blocks->end(), command.blocks.begin(), command.blocks.end());
  loan.blocks = std::move(blocks);
  loan.units.end = command.units.end;
  loan.heard = now;
}

void LoanTable::Stop(const LoanKey& key) {
  absl::MutexLock lock(&mutex_);
  const auto debtor = debtors_.find(key.debtor);
  if (debtor != debtors_.end()) {
    count_ -= debtor->second.erase(key.loan);
    if (debtor->second.empty()) debtors_.erase(debtor);
  }
  const auto is_free = [this, &key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return used_debtor_ == nullptr || !(*used_debtor_ == key.debtor) || used_loan_ != key.loan;
  };
  mutex_.Await(absl::Condition(&is_free));
}

void LoanTable::Recall(const LoanKey& key) {
  absl::MutexLock lock(&mutex_);
  if (Loan* loan = Find(key.debtor, key.loan); loan != nullptr) loan->is_recalled = true;
}

LoanTable::Loan* LoanTable::Find(const DebtorId& debtor, LoanId loan) {
  const auto loans = debtors_.find(debtor);
  if (loans == debtors_.end()) return nullptr;
  const auto found = loans->second.find(loan);
  return found == loans->second.end() ? nullptr : &found->second;
}

absl::StatusOr<LoanTable::Loan*> LoanTable::FindServed(const DebtorId& debtor, LoanId loan) {
  Loan* const found = Find(debtor, loan);
  if (found != nullptr && !found->has_ended) return found;
  return absl::NotFoundError(
      absl::StrCat("loan ", loan.value(), " of ", debtor.node.value(), " is not served"));
}

absl::StatusOr<LoanTable::Use> LoanTable::BeginUse(const DebtorId& debtor, LoanId loan,
                                                   const engine::UnitSpan& units, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  TANDEM_CHECK(used_debtor_ == nullptr);
  ASSIGN_OR_RETURN(Loan* const found, FindServed(debtor, loan));
  found->heard = now;
  if (units.first < found->units.first || units.end > found->units.end || units.size() <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("loan ", loan.value(), " has units ",
                                                   found->units.first, " to ", found->units.end,
                                                   ", asked for ", units.first, " to ", units.end));
  }
  const size_t unit_blocks = found->blocks->size() / static_cast<size_t>(found->units.size());
  Use use{.owner = found->blocks, .blocks = {}};
  use.blocks = absl::MakeConstSpan(*use.owner)
                   .subspan(static_cast<size_t>(units.first - found->units.first) * unit_blocks,
                            static_cast<size_t>(units.size()) * unit_blocks);
  used_debtor_ = &debtor;
  used_loan_ = loan;
  return use;
}

void LoanTable::EndUse() {
  absl::MutexLock lock(&mutex_);
  used_debtor_ = nullptr;
}

absl::Status LoanTable::Renew(const DebtorId& debtor, LoanId loan, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Loan* const found, FindServed(debtor, loan));
  found->heard = now;
  return absl::OkStatus();
}

absl::Status LoanTable::Return(const DebtorId& debtor, LoanId loan) {
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Loan* const found, FindServed(debtor, loan));
  found->has_ended = true;
  ended_.push_back(LoanReturned{.key = {.debtor = debtor, .loan = loan}});
  return absl::OkStatus();
}

bool LoanTable::IsRecalled(const DebtorId& debtor, LoanId loan) {
  absl::MutexLock lock(&mutex_);
  const Loan* const found = Find(debtor, loan);
  return found != nullptr && found->is_recalled;
}

std::vector<LendingEvent> LoanTable::TakeEnded(absl::Time heard_after) {
  absl::MutexLock lock(&mutex_);
  for (auto& [debtor, loans] : debtors_) {
    for (auto& [id, loan] : loans) {
      if (loan.has_ended || loan.heard >= heard_after) continue;
      loan.has_ended = true;
      ended_.push_back(LoanExpired{.key = {.debtor = debtor, .loan = id}});
    }
  }
  return std::exchange(ended_, {});
}

size_t LoanTable::size() const {
  absl::MutexLock lock(&mutex_);
  return count_;
}

}  // namespace tandem::lending
