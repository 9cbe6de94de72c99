// What moving bytes from one node to another costs, learned from the transfers that ran:
//
//   time = fixed part + bytes / rate
//
// Thread safety: none. Owner: the router's Fleet, one for each pair of nodes.
#pragma once

#include <cstdint>

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

 private:
  static constexpr OnlineFit::Terms kOrdinaryTransfer = {1, 1 << 20};

  OnlineFit fit_;
};

}  // namespace tandem::cost
