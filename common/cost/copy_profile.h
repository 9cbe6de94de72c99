// What moving bytes costs, as nodes tell it in heartbeats: from one node to another (LinkCost fits
// it) or between memory and storage (CopyRate does), by
//
//   time = fixed part + bytes / rate
//
// Thread safety: values.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

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

}  // namespace tandem::cost
