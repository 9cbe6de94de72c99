// What an engine step costs, learned from the steps that ran. A node's scheduler, the router and
// the simulator predict with the same classes: a node fits a StepCost, and its StepProfile travels
// in heartbeats.
//
//   time = step + prompt rows * b + their attended tokens * c
//               + generated rows * b' + their attended tokens * c' + sampled rows * d
//
// Prompt rows and generated rows are apart, because they cost different things: the rows of a
// prompt share what they read (arithmetic bounds them), a generated row reads its sequence alone
// (bytes bound it). Times are microseconds.
// Thread safety: StepShape and StepProfile are values; StepCost has none.
// Owner: StepMeter (a node); StepProfile: the router's Node, and the simulator's, whose clock it
// is.
#pragma once

#include <cstdint>

#include "common/cost/online_fit.h"

namespace tandem::cost {

// What an engine step computes.
struct StepShape {
  int64_t prompt_rows = 0;
  int64_t prompt_attended = 0;  // sum over prompt rows of the tokens that the row attends to
  int64_t generated_rows = 0;   // slices of one row that is sampled
  int64_t generated_attended = 0;
  int64_t sampled_rows = 0;  // of both kinds

  bool empty() const { return prompt_rows == 0 && generated_rows == 0; }
  // Adds a slice of rows [first_row, first_row + num_rows) of a sequence.
  void Add(int64_t first_row, int64_t num_rows, bool sample);
};

struct StepPrediction {
  double us = 0;
  double error_us = 0;  // one standard deviation
};

// The coefficients of one fit and how well they have predicted.
struct StepProfile {
  double step_us = 0;
  double prompt_row_us = 0, prompt_attended_us = 0;
  double generated_row_us = 0, generated_attended_us = 0;
  double sampled_row_us = 0;
  double relative_error = 1;         // root mean square
  double median_relative_error = 0;  // of the absolute values
  int64_t samples = 0, clipped = 0, rejected = 0;
  double predicted_us = 0, actual_us = 0;  // sums over samples

  StepPrediction Predict(const StepShape& shape) const;
  // Whether every figure is finite and not negative: a profile of a peer may be anything.
  bool Plausible() const;
};

class StepCost {
 public:
  StepCost();

  // A step of this shape took `us`. Rejected and clipped as OnlineFit::Observe says.
  OnlineFit::Verdict Observe(const StepShape& shape, double us);
  // With the error of this shape. Before the first step: 0, with an infinite error.
  StepPrediction Predict(const StepShape& shape) const;
  StepProfile profile() const;
  int64_t samples() const { return fit_.samples(); }

 private:
  OnlineFit fit_;
};

}  // namespace tandem::cost
