#include "cli/bench_modes/serving_mode.h"

namespace tandem::cli {

const char* NameOf(ServingMode mode) {
  switch (mode) {
    case ServingMode::kBatched:
      return "batched";
    case ServingMode::kInterleaved:
      return "interleaved";
    case ServingMode::kDisaggregated:
      return "disaggregated";
  }
  return "";
}

UpConfig ConfigureFor(ServingMode mode, const UpConfig& up) {
  UpConfig config = up;
  config.grpc = {"127.0.0.1:0"};
  config.http.clear();
  config.node.batching = mode == ServingMode::kBatched ? "static" : "continuous";
  if (mode != ServingMode::kDisaggregated) {
    config.decode = up.prefill + up.decode;
    config.prefill = 0;
  }
  return config;
}

}  // namespace tandem::cli
