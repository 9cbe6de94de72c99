// The flags of sampling and stop parameters, for `tandem generate` and `tandem chat`. Which
// parameters have a flag, its help and its range: common/request/parameter_table.h.
// Thread safety: none; used by main before other threads start. Owner: the command.
#pragma once

#include <cstdint>

#include "common/config/schema.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// What the flags say. `seed` stands beside `sampling.seed` because a flag of -1 leaves the seed to
// the router.
struct SamplingFlags {
  request::SamplingParams sampling;
  request::StopParams stop;
  int64_t seed = 0;
};

// Adds a flag for every parameter whose row has one, and gives `flags` the flags' defaults.
// REQUIRES: `flags` outlives `schema`.
void RegisterSamplingFlags(config::Schema& schema, SamplingFlags& flags);

// Writes the flags' values into `request`. A flag at its "unset" value leaves the field absent.
void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest& request);

}  // namespace tandem::cli
