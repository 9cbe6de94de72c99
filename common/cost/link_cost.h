// What moving bytes from one node to another costs, learned from the transfers that ran:
//
//   time = fixed part + bytes / rate
//
// CopyRate (copy_rate.h) fits what storage costs.
// Thread safety: none. Owner: the router's Fleet, one for each pair of nodes, and a node's
// CreditorCosts, one for each creditor.
#pragma once

#include <cstdint>

#include "common/cost/copy_profile.h"
#include "common/cost/online_fit.h"

namespace tandem::cost {

class LinkCost {
 public:
  LinkCost() : fit_(2, kOrdinaryTransfer) {}

  // A transfer of `bytes` took `us` on the wire. Rejected and clipped as OnlineFit::Observe says.
  OnlineFit::Verdict Observe(int64_t bytes, double us) {
    return fit_.Observe({1, static_cast<double>(bytes)}, us);
  }
  // In microseconds. Before the first transfer: 0, with an infinite error.
  OnlineFit::Prediction Predict(int64_t bytes) const {
    return fit_.Predict({1, static_cast<double>(bytes)});
  }
  double fixed_us() const { return fit_.coefficient(0); }
  // 0 when the transfers do not tell: before the first one, and when bytes made none slower.
  double bytes_per_second() const {
    return fit_.coefficient(1) > 0 ? 1e6 / fit_.coefficient(1) : 0;
  }
  double relative_error() const { return fit_.relative_error(); }
  int64_t samples() const { return fit_.samples(); }
  CopyProfile profile() const {
    return {.fixed_us = fixed_us(),
            .bytes_per_second = bytes_per_second(),
            .relative_error = relative_error(),
            .samples = samples(),
            .clipped = fit_.clipped(),
            .rejected = fit_.rejected(),
            .predicted_us = fit_.predicted_sum(),
            .actual_us = fit_.actual_sum()};
  }

 private:
  static constexpr OnlineFit::Terms kOrdinaryTransfer = {1, 1 << 20};

  OnlineFit fit_;
};

}  // namespace tandem::cost
