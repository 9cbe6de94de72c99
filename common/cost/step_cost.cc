#include "common/cost/step_cost.h"

#include <cmath>

namespace tandem::cost {
namespace {

// Of an ordinary step: 64 rows of prompts and 8 generated rows, 512 tokens into their sequences.
constexpr OnlineFit::Terms kOrdinaryStep = {1, 64, 64 * 512, 8, 8 * 512, 8};

OnlineFit::Terms TermsOf(const StepShape& shape) {
  return {shape.empty() ? 0.0 : 1.0,
          static_cast<double>(shape.prompt_rows),
          static_cast<double>(shape.prompt_attended),
          static_cast<double>(shape.generated_rows),
          static_cast<double>(shape.generated_attended),
          static_cast<double>(shape.sampled_rows)};
}

}  // namespace

void StepShape::Add(int64_t first_row, int64_t num_rows, bool sample) {
  // Row i attends to itself and the i rows before it.
  const int64_t attended = num_rows * first_row + num_rows * (num_rows + 1) / 2;
  if (sample) ++sampled_rows;
  if (num_rows == 1 && sample) {
    ++generated_rows;
    generated_attended += attended;
  } else {
    prompt_rows += num_rows;
    prompt_attended += attended;
  }
}

StepPrediction StepProfile::Predict(const StepShape& shape) const {
  const OnlineFit::Terms terms = TermsOf(shape);
  const double us = step_us * terms[0] + prompt_row_us * terms[1] + prompt_attended_us * terms[2] +
                    generated_row_us * terms[3] + generated_attended_us * terms[4] +
                    sampled_row_us * terms[5];
  return {us, us * relative_error};
}

bool StepProfile::Plausible() const {
  for (const double figure :
       {step_us, prompt_row_us, prompt_attended_us, generated_row_us, generated_attended_us,
        sampled_row_us, relative_error, median_relative_error, predicted_us, actual_us}) {
    if (!(std::isfinite(figure) && figure >= 0)) return false;
  }
  return samples >= 0 && clipped >= 0 && rejected >= 0;
}

StepCost::StepCost() : fit_(6, kOrdinaryStep) {}

OnlineFit::Verdict StepCost::Observe(const StepShape& shape, double us) {
  return fit_.Observe(TermsOf(shape), us);
}

StepPrediction StepCost::Predict(const StepShape& shape) const {
  const OnlineFit::Prediction prediction = fit_.Predict(TermsOf(shape));
  return {prediction.value, prediction.error};
}

StepProfile StepCost::profile() const {
  return {.step_us = fit_.coefficient(0),
          .prompt_row_us = fit_.coefficient(1),
          .prompt_attended_us = fit_.coefficient(2),
          .generated_row_us = fit_.coefficient(3),
          .generated_attended_us = fit_.coefficient(4),
          .sampled_row_us = fit_.coefficient(5),
          .relative_error = fit_.relative_error(),
          .median_relative_error = fit_.median_relative_error(),
          .samples = fit_.samples(),
          .clipped = fit_.clipped(),
          .rejected = fit_.rejected(),
          .predicted_us = fit_.predicted_sum(),
          .actual_us = fit_.actual_sum()};
}

}  // namespace tandem::cost
