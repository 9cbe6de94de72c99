#include "common/transfer/fin_loans.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/node_id.h"

namespace tandem::transfer {

void PutLoans(absl::Span<const v1::KvLoan> loans, v1::KvFin& fin) {
  absl::flat_hash_map<std::pair<std::string, uint64_t>, uint32_t> numbers;
  for (const v1::KvLoan& from : loans) {
    const auto [it, is_new] =
        numbers.try_emplace(std::make_pair(from.creditor_node_id(), from.creditor_incarnation()),
                            static_cast<uint32_t>(fin.creditors_size() + 1));
    if (is_new) {
      v1::KvCreditor& creditor = *fin.add_creditors();
      creditor.set_node_id(from.creditor_node_id());
      creditor.set_incarnation(from.creditor_incarnation());
    }
    v1::KvLoan& loan = *fin.add_loans();
    loan.set_first_unit(from.first_unit());
    loan.set_units(from.units());
    loan.set_creditor(it->second);
  }
}

std::vector<v1::KvLoan> LoansOf(const v1::KvFin& fin) {
  std::vector<v1::KvLoan> loans(fin.loans().begin(), fin.loans().end());
  for (v1::KvLoan& loan : loans) {
    const uint32_t number = loan.creditor();
    if (number == 0) continue;
    loan.clear_creditor();
    loan.clear_creditor_node_id();
    loan.clear_creditor_incarnation();
    if (number > static_cast<uint32_t>(fin.creditors_size())) continue;
    const v1::KvCreditor& creditor = fin.creditors(static_cast<int>(number - 1));
    // Many loans repeat a name: a long one would take much memory.
    if (!CheckNodeId(creditor.node_id()).ok()) continue;
    loan.set_creditor_node_id(creditor.node_id());
    loan.set_creditor_incarnation(creditor.incarnation());
  }
  return loans;
}

}  // namespace tandem::transfer
