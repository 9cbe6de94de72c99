// What is assumed of a node's steps while nothing, or nothing that can be, is known of them.
// Thread safety: pure functions. Units: microseconds, as in step_cost.h.
#pragma once

#include <limits>

#include "common/cost/step_cost.h"

namespace tandem::cost {

// Whether the profile says something: computing takes time, and no ordinary step takes hours.
inline bool Predicts(const StepProfile& profile) {
  // A prompt of a thousand tokens, and a thousand generated ones.
  constexpr int64_t kRows = 1000;
  constexpr double kStepUsMax = 3.6e9;
  const double prompt =
      profile.Predict({.prompt_rows = kRows, .prompt_attended = kRows * kRows / 2}).us;
  const double generated =
      profile.Predict({.generated_rows = kRows, .generated_attended = kRows, .sampled_rows = kRows})
          .us;
  return prompt > 0 && prompt <= kStepUsMax && generated >= 0 && generated <= kStepUsMax;
}

// A small model on a few cores. Its error is infinite.
inline StepProfile DefaultStepProfile() {
  return {.step_us = 1000,
          .prompt_row_us = 100,
          .prompt_attended_us = 0.01,
          .generated_row_us = 100,
          .generated_attended_us = 0.01,
          .sampled_row_us = 10,
          .relative_error = std::numeric_limits<double>::infinity(),
          .median_relative_error = std::numeric_limits<double>::infinity()};
}

}  // namespace tandem::cost
