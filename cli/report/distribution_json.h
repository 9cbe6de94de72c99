// A distribution of measured values as an object of a result file: count, mean, p50, p90, p99 and
// max, in the values' unit.
// Thread safety: pure function.
#pragma once

#include "cli/report/statistics.h"
#include "router/front_end/json_body.h"

namespace tandem::cli {

inline router::Json ToJson(const Distribution& d) {
  return {{"count", d.count}, {"mean", d.mean}, {"p50", d.p50},
          {"p90", d.p90},     {"p99", d.p99},   {"max", d.max}};
}

}  // namespace tandem::cli
