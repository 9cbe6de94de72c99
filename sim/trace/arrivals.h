// Adapts a trace's arrivals: fewer requests, another speed, and bundles taken apart.
// Thread safety: one thread uses a source.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/trace/workload_source.h"

namespace tandem::sim {

struct ArrivalOptions {
  int64_t requests_max = 0;  // 0 = all
  double speed = 1;          // 2 = twice as many requests a second
  // Traces round their times, so that requests of some seconds arrive in one moment. Spreads them
  // evenly over the time until the next moment, in their order.
  bool spread = true;
};
// Requests of one moment that are spread; further ones are taken as of the next moment.
inline constexpr size_t kSpreadMax = 65'536;

// REQUIRES: options.speed > 0.
std::unique_ptr<WorkloadSource> AdaptArrivals(std::unique_ptr<WorkloadSource> source,
                                              const ArrivalOptions& options);

}  // namespace tandem::sim
