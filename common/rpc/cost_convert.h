// What a node's steps, its storage and the links to its creditors cost, between the value
// (common/cost) and its wire form. Thread safety: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "common/cost/copy_profile.h"
#include "common/cost/step_cost.h"
#include "tandem/v1/client.pb.h"

namespace tandem::rpc {

v1::StepCost ToWire(const cost::StepProfile& profile);
// Errors: kInvalidArgument when a figure is negative or not finite.
absl::StatusOr<cost::StepProfile> FromWire(const v1::StepCost& wire);
v1::StorageCost ToWire(const cost::StorageProfile& profile);
absl::StatusOr<cost::StorageProfile> FromWire(const v1::StorageCost& wire);  // errors as above
// Both leave the creditor's name out. Errors as above, and for more than kLayersMax layers.
v1::CreditorLink ToWire(const cost::CreditorProfile& profile);
absl::StatusOr<cost::CreditorProfile> FromWire(const v1::CreditorLink& wire);

}  // namespace tandem::rpc
