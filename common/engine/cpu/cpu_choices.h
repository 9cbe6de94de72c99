// The choices that the CPU engine makes from its options and this processor: backend, threads,
// types. Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/weight_format.h"
#include "common/model/model_config.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

struct CpuChoices {
  const kernels::Backend* backend = nullptr;
  WeightFormat weights = WeightFormat::kAuto;
  kernels::KvShape kv;
  std::string numerics;  // the first part of the numerics id
};

// Errors: kInvalidArgument for options out of range, a model this engine has no kernels for, or an
// ISA class this CPU lacks (names what it has).
absl::StatusOr<CpuChoices> ChooseForCpu(const model::ModelConfig& config,
                                        const CpuEngineOptions& options);

}  // namespace tandem::engine
