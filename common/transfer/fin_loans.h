// How a FIN names loans: each creditor once, and each loan its creditor's number, so that hundreds
// of loans fit the header that a transport takes. Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

// Adds `loans`, which name their creditors themselves, to the FIN.
void PutLoans(absl::Span<const v1::KvLoan> loans, v1::KvFin& fin);
// The FIN's loans, each with its creditor's name, whichever way the sender named it. A loan of a
// number that the FIN does not have, or of a name longer than kNodeIdBytesMax, has no creditor.
std::vector<v1::KvLoan> LoansOf(const v1::KvFin& fin);

}  // namespace tandem::transfer
