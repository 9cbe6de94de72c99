// The part of DecodeCore (decode_node/decode_core.h) that lending needs: it hands the lending
// plane's events to the two ends, and ends sequences that get no memory.
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::EndStarved(absl::Time now) {
  for (const SequenceId id : borrower_.TakeStarved(now)) {
    const auto found = by_sequence_.find(id);
    if (found == by_sequence_.end()) continue;
    FailAndEnd(
        found->second,
        absl::ResourceExhaustedError(
            "KV pool: the sequence needs more blocks than this node has and other nodes lend"),
        "no memory");
  }
}

void DecodeCore::OnLending(const lending::LendingEvent& event, absl::Time now) {
  if (const auto* returned = std::get_if<lending::LoanReturned>(&event))
    return lender_.Handle(*returned);
  if (const auto* expired = std::get_if<lending::LoanExpired>(&event))
    return lender_.Handle(*expired);
  if (const auto* damaged = std::get_if<lending::LoanDamaged>(&event))
    return lender_.Handle(*damaged);
  if (const auto* lost = std::get_if<lending::LoanLost>(&event))
    return borrower_.Handle(*lost, now);
  borrower_.Handle(std::get<lending::LoanRecalled>(event), now);
}

}  // namespace tandem::decode_node
