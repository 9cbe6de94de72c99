// Flags of sampling and stopping, shared by generate and chat.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/schema.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct SamplingFlags {
  int32_t max_tokens = 256;
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  int64_t seed = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// `flags` outlives `schema`.
void RegisterSamplingFlags(config::Schema& schema, SamplingFlags& flags);
void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest& request);

}  // namespace tandem::cli
