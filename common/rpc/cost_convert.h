// What a node's steps cost, between its value (common/cost) and its wire form.
// Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "common/cost/step_cost.h"
#include "tandem/v1/client.pb.h"

namespace tandem::rpc {

v1::StepCost ToWire(const cost::StepProfile& profile);
// Errors: kInvalidArgument when a figure is negative or not finite.
absl::StatusOr<cost::StepProfile> FromWire(const v1::StepCost& wire);

}  // namespace tandem::rpc
