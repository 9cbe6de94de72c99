// What steps of simulated nodes cost: the cost model, as `--model-cost` takes it
// (name=microseconds, comma-separated), and how unevenly steps take their time, as `--step-noise`
// does.
//
//   step=9000,prompt-row=112,prompt-attended=0.0022,generated-row=50,generated-attended=0.02,
//   sampled-row=10
//
// The names are the terms of common/cost/step_cost.h; a term that is left out costs nothing.
// Thread safety: free functions; ReadStepNoise reads a file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/files/named_file.h"
#include "common/cost/step_cost.h"
#include "sim/trace/step_noise.h"

namespace tandem::cli {

// A model of 70 billion parameters in bf16 on eight A100 GPUs, from their data sheet: 16 TB/s and
// half of 2.5 PFLOP/s; 140 GB of weights, 320 KB of KV a token, 140 GFLOP a row, and 2.6 MFLOP a
// row and attended token.
inline constexpr absl::string_view kDefaultModelCost =
    "step=9000,prompt-row=112,prompt-attended=0.0022,generated-row=50,generated-attended=0.02,"
    "sampled-row=10";

// Errors: kInvalidArgument for a name that is not a term, a figure that is negative or no number,
// and a model in which a step takes no time.
absl::StatusOr<cost::StepProfile> ParseModelCost(absl::string_view text);

inline constexpr int64_t kNoiseFileBytesMax = 16 << 20;

// Reads what `tandem bench trace --json` wrote, and takes its member "gap_noise": pairs
// [percent, factor]. Errors, with flag and file: kNotFound when it cannot be read,
// kResourceExhausted beyond kNoiseFileBytesMax, kInvalidArgument when it is not such JSON or its
// quantiles are none (StepNoise::Create).
absl::StatusOr<sim::StepNoise> ReadStepNoise(const NamedFile& file);

}  // namespace tandem::cli
