// The requests of a chaos run, drawn from its seed. Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/chaos/stream_check.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct ChaosWorkloadOptions {
  uint64_t seed = 0;
  int requests = 128;
  bool hash_engine = true;
  int prompt_tokens_max = 500;
  int output_tokens_max = 120;
  // Of the requests, those that one node cannot hold, half of them by their prompts and half by
  // their answers: they need 1.1 to 1.5 times `pool_tokens`, what a node holds. 0: none.
  double beyond_pool_share = 0;
  int64_t pool_tokens = 0;  // at least 64 if the share is not 0
};

// Greedy and sampled, with stop strings, log-probabilities and several answers; half of the prompts
// begin with one of a few shared prefixes. They have no ids and no salts, because each client adds
// its own.
std::vector<v1::GenerateRequest> DrawWorkload(const ChaosWorkloadOptions& options);

// How answers differ from those of the hash engine, which the prompt alone decides; "" when they do
// not.
std::string DifferenceFromHashEngine(const v1::GenerateRequest& request,
                                     const std::vector<SequenceAnswer>& got);

}  // namespace tandem::cli
