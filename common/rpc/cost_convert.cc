#include "common/rpc/cost_convert.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace tandem::rpc {
namespace {

v1::CopyCost ToWire(const cost::CopyProfile& profile) {
  v1::CopyCost wire;
  wire.set_fixed_us(profile.fixed_us);
  wire.set_bytes_per_second(profile.bytes_per_second);
  wire.set_relative_error(profile.relative_error);
  wire.set_samples(profile.samples);
  wire.set_clipped(profile.clipped);
  wire.set_rejected(profile.rejected);
  wire.set_predicted_us(profile.predicted_us);
  wire.set_actual_us(profile.actual_us);
  return wire;
}

cost::CopyProfile CopyProfileOf(const v1::CopyCost& wire) {
  return {.fixed_us = wire.fixed_us(),
          .bytes_per_second = wire.bytes_per_second(),
          .relative_error = wire.relative_error(),
          .samples = wire.samples(),
          .clipped = wire.clipped(),
          .rejected = wire.rejected(),
          .predicted_us = wire.predicted_us(),
          .actual_us = wire.actual_us()};
}

}  // namespace

v1::StepCost ToWire(const cost::StepProfile& profile) {
  v1::StepCost wire;
  wire.set_step_us(profile.step_us);
  wire.set_prompt_row_us(profile.prompt_row_us);
  wire.set_prompt_attended_us(profile.prompt_attended_us);
  wire.set_generated_row_us(profile.generated_row_us);
  wire.set_generated_attended_us(profile.generated_attended_us);
  wire.set_sampled_row_us(profile.sampled_row_us);
  wire.set_relative_error(profile.relative_error);
  wire.set_median_relative_error(profile.median_relative_error);
  wire.set_samples(profile.samples);
  wire.set_clipped(profile.clipped);
  wire.set_rejected(profile.rejected);
  wire.set_predicted_us(profile.predicted_us);
  wire.set_actual_us(profile.actual_us);
  return wire;
}

absl::StatusOr<cost::StepProfile> FromWire(const v1::StepCost& wire) {
  const cost::StepProfile profile{.step_us = wire.step_us(),
                                  .prompt_row_us = wire.prompt_row_us(),
                                  .prompt_attended_us = wire.prompt_attended_us(),
                                  .generated_row_us = wire.generated_row_us(),
                                  .generated_attended_us = wire.generated_attended_us(),
                                  .sampled_row_us = wire.sampled_row_us(),
                                  .relative_error = wire.relative_error(),
                                  .median_relative_error = wire.median_relative_error(),
                                  .samples = wire.samples(),
                                  .clipped = wire.clipped(),
                                  .rejected = wire.rejected(),
                                  .predicted_us = wire.predicted_us(),
                                  .actual_us = wire.actual_us()};
  if (!profile.Plausible()) {
    return absl::InvalidArgumentError(absl::StrCat("step_cost: ", wire.ShortDebugString(),
                                                   ", expected figures that are finite and >= 0"));
  }
  return profile;
}

// The first two fields are of the disk, or of host memory alone: all that older releases know of.
v1::StorageCost ToWire(const cost::StorageProfile& profile) {
  v1::StorageCost wire;
  if (const auto& lowest = profile.disk.has_value() ? profile.disk : profile.host;
      lowest.has_value()) {
    *wire.mutable_read() = ToWire(lowest->read);
    *wire.mutable_write() = ToWire(lowest->write);
    wire.set_in_memory(!profile.disk.has_value());
  }
  if (profile.disk.has_value() && profile.host.has_value()) {
    *wire.mutable_host_read() = ToWire(profile.host->read);
    *wire.mutable_host_write() = ToWire(profile.host->write);
  }
  return wire;
}

absl::StatusOr<cost::StorageProfile> FromWire(const v1::StorageCost& wire) {
  const cost::TierProfile lowest{.read = CopyProfileOf(wire.read()),
                                 .write = CopyProfileOf(wire.write())};
  const cost::TierProfile above{.read = CopyProfileOf(wire.host_read()),
                                .write = CopyProfileOf(wire.host_write())};
  for (const cost::CopyProfile& copies : {lowest.read, lowest.write, above.read, above.write}) {
    if (!copies.Plausible()) {
      return absl::InvalidArgumentError(
          absl::StrCat("storage_cost: ", wire.ShortDebugString(),
                       ", expected figures that are finite and >= 0"));
    }
  }
  cost::StorageProfile profile;
  (wire.in_memory() ? profile.host : profile.disk) = lowest;
  if (!wire.in_memory() && wire.has_host_read()) profile.host = above;
  return profile;
}

v1::CreditorLink ToWire(const cost::CreditorProfile& profile) {
  v1::CreditorLink wire;
  *wire.mutable_blocks() = ToWire(profile.blocks);
  wire.set_round_trip_us(profile.round_trip_us);
  wire.set_layers(profile.layers);
  return wire;
}

absl::StatusOr<cost::CreditorProfile> FromWire(const v1::CreditorLink& wire) {
  const cost::CreditorProfile profile{.blocks = CopyProfileOf(wire.blocks()),
                                      .round_trip_us = wire.round_trip_us(),
                                      .layers = wire.layers()};
  if (!profile.Plausible()) {
    return absl::InvalidArgumentError(
        absl::StrCat("creditor_links: ", Shown(wire.ShortDebugString(), kShownLongBytesMax),
                     ", expected figures that are "
                     "finite and >= 0, and at most ",
                     cost::CreditorProfile::kLayersMax, " layers"));
  }
  return profile;
}

}  // namespace tandem::rpc
