// What copying blocks to or from storage costs, learned from the copies that ran:
//
//   time = bytes / rate
//
// Without a fixed part, unlike LinkCost: blocks are copied one by one, and most copies are equally
// large, from which a fixed part and a rate cannot be told apart.
//
// Thread safety: none. Owner: StoredBlocks, one for reads and one for writes.
#pragma once

#include <cstdint>

#include "common/cost/copy_profile.h"
#include "common/cost/online_fit.h"

namespace tandem::cost {

class CopyRate {
 public:
  CopyRate() : fit_(1, kOrdinaryCopy) {}

  // A copy of `bytes` took `us`. Rejected and clipped as OnlineFit::Observe says.
  OnlineFit::Verdict Observe(int64_t bytes, double us) {
    return fit_.Observe({static_cast<double>(bytes)}, us);
  }
  // In microseconds; 0 before the first copy.
  double PredictUs(int64_t bytes) const { return fit_.Predict({static_cast<double>(bytes)}).value; }
  int64_t samples() const { return fit_.samples(); }
  CopyProfile profile() const {
    const double us_per_byte = fit_.coefficient(0);
    return {.bytes_per_second = us_per_byte > 0 ? 1e6 / us_per_byte : 0,
            .relative_error = fit_.relative_error(),
            .samples = fit_.samples(),
            .clipped = fit_.clipped(),
            .rejected = fit_.rejected(),
            .predicted_us = fit_.predicted_sum(),
            .actual_us = fit_.actual_sum()};
  }

 private:
  static constexpr OnlineFit::Terms kOrdinaryCopy = {1 << 20};

  OnlineFit fit_;
};

}  // namespace tandem::cost
