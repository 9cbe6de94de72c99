#include "common/rpc/cost_convert.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::rpc {

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

}  // namespace tandem::rpc
