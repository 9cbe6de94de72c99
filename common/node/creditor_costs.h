// What a debtor has measured of the links to its creditors, for its routers: they rank creditors by
// what a loan will cost (router/fleet/loan_price.h).
//
//   - The rate at which lent blocks arrive, from the exports of its loans. Blocks are sent part by
//     part between steps, so an export's whole time tells the pace (moving_pace.h) and not the
//     link: only its last stretch without a pause counts (transfer::ExportDone).
//   - The round trip of a question: the least of a short time each (lending/creditor_links.h says
//     what it includes), averaged over these times.
//
// A creditor's figures outlive its loans: it may be asked again. They are of one incarnation.
// Thread safety: none; the engine thread. Owner: Borrower.
// Invariants: at most kCreditorsMax creditors; of more, the one without news for longest is
// forgotten.
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cost/copy_profile.h"
#include "common/cost/link_cost.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending.h"
#include "tandem/v1/client.pb.h"

namespace tandem::node {

class CreditorCosts {
 public:
  static constexpr size_t kCreditorsMax = 64;  // as many as a router keeps of one debtor
  // The weight of a new round trip in the average.
  static constexpr double kNewWeight = 0.125;

  // The last stretch of an export to the creditor: `bytes` took `time` until they were
  // acknowledged. Without a time, or without bytes, it has no effect.
  void OnSent(const lending::DebtorId& creditor, int64_t bytes, absl::Duration time);
  // Times of zero and below have no effect.
  void OnRoundTrip(const lending::DebtorId& creditor, absl::Duration round_trip);

  // Rises with each measurement.
  int64_t version() const { return version_; }
  // One entry for each creditor. `layers`: whose questions one token asks.
  google::protobuf::RepeatedPtrField<v1::CreditorLink> Links(int32_t layers) const;

 private:
  struct Entry {
    Incarnation incarnation;
    cost::LinkCost blocks;
    double round_trip_us = 0;
    int64_t changed = 0;  // the version
  };
  // The creditor's entry, which is about to change.
  Entry& Changed(const lending::DebtorId& creditor);

  // Bound: kCreditorsMax.
  std::map<NodeId, Entry> creditors_;
  int64_t version_ = 0;
};

// Sets what the links have counted.
void AddTo(const lending::CreditorLinksCounters& links, v1::NodeCounters& counters);

}  // namespace tandem::node
