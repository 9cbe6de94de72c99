// Times a node's engine steps for its cost model: from the moment when a step is planned to the
// moment when its result is there. That is what a generated token waits for, so it includes the
// time in which the engine thread sends layers.
//
// The caller's clock gives the times: the real one in a node, the virtual one in the simulator.
// Thread safety: none; the engine thread. Owner: the SequenceScheduler.
#pragma once

#include "absl/time/time.h"
#include "common/cost/step_cost.h"

namespace tandem::node {

class StepMeter {
 public:
  // `cost`: what is known before the first step, for example from ProbeStepCost.
  explicit StepMeter(const cost::StepCost& cost) : cost_(cost) {}

  // A step of this shape begins. An empty shape is no step.
  void Start(const cost::StepShape& shape, absl::Time now) {
    shape_ = shape;
    if (!shape.empty()) last_ = shape;
    started_ = now;
  }
  // The step that began last has ended. A step that failed (`computed` is false) teaches nothing.
  void Stop(bool computed, absl::Time now) {
    if (computed && !shape_.empty())
      cost_.Observe(shape_, absl::ToDoubleMicroseconds(now - started_));
    shape_ = {};
  }
  const cost::StepCost& cost() const { return cost_; }
  // What the step that began last is predicted to take; the next one will be like it. 0 if nothing
  // is known.
  double PredictLastUs() const {
    return last_.empty() || cost_.samples() == 0 ? 0 : cost_.Predict(last_).us;
  }

 private:
  cost::StepCost cost_;
  cost::StepShape shape_;  // of the step that runs
  cost::StepShape last_;
  absl::Time started_;
};

}  // namespace tandem::node
