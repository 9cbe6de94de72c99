// What moving bytes costs, from one node to another or between memory and storage, learned from the
// copies that ran:
//
//   time = fixed part + bytes / rate
//
// Thread safety: the profiles are values; LinkCost has none.
// Owner: of a LinkCost, the router's Fleet, one for each pair of nodes, and a node's CreditorCosts,
// one for each creditor. CopyRate (copy_rate.h) fits what storage costs.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "common/cost/online_fit.h"

namespace tandem::cost {

// The coefficients of one fit and how well they have predicted. Times are microseconds.
struct CopyProfile {
  double fixed_us = 0;
  double bytes_per_second = 0;  // 0: the copies do not tell one
  double relative_error = 1;    // root mean square
  int64_t samples = 0, clipped = 0, rejected = 0;
  double predicted_us = 0, actual_us = 0;  // sums over samples

  double PredictUs(double bytes) const {
    return fixed_us + (bytes_per_second > 0 ? bytes / bytes_per_second * 1e6 : 0);
  }
  // Whether every figure is finite and not negative: a profile of a peer may be anything.
  bool Plausible() const {
    for (const double figure :
         {fixed_us, bytes_per_second, relative_error, predicted_us, actual_us}) {
      if (!(std::isfinite(figure) && figure >= 0)) return false;
    }
    return samples >= 0 && clipped >= 0 && rejected >= 0;
  }
};

// Of one tier of a node's storage for KV blocks.
struct TierProfile {
  CopyProfile read, write;
};
// Of a node's storage: host memory, a disk, or both.
struct StorageProfile {
  std::optional<TierProfile> host, disk;

  // Of all tiers: changes with each copy.
  int64_t copies() const {
    int64_t copies = 0;
    for (const auto& tier : {host, disk})
      if (tier.has_value()) copies += tier->read.samples + tier->write.samples;
    return copies;
  }
};

// Of the link from a debtor to a creditor.
struct CreditorProfile {
  static constexpr int32_t kLayersMax = 65'536;
  CopyProfile blocks;        // of what is lent
  double round_trip_us = 0;  // of a question; 0 = none was measured
  int32_t layers = 0;        // in each of which a token asks

  // The questions about one token, one after another.
  double AskUs() const { return round_trip_us * layers; }
  bool Plausible() const {
    return blocks.Plausible() && std::isfinite(round_trip_us) && round_trip_us >= 0 &&
           layers >= 0 && layers <= kLayersMax;
  }
};

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
