// Two decode nodes on which each sequence adds 10 ms to a step, so that goals for steps decide how
// many run there. Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {

class StepGoalFixture : public ::testing::Test {
 protected:
  // Starts the router, and lets the nodes join as 1 and 2. Placement is by cost.
  void Start(RouterOptions options) {
    options.placement = PlacementPolicy::kCost;
    h_ = std::make_unique<CoreHarness>(options);
    for (const uint64_t key : {1, 2}) {
      h_->JoinDecode(key, absl::StrCat("d", key));
      v1::NodeMessage message;
      message.mutable_step_cost()->set_prompt_row_us(10);
      message.mutable_step_cost()->set_generated_row_us(10'000);
      h_->SayMessage(key, message);
    }
  }
  // What the node was asked to start since the last call.
  std::vector<v1::StartDecode> Started(uint64_t key) {
    std::vector<v1::StartDecode> started;
    while (!h_->Quiet(key)) {
      const v1::NodeCommand command = h_->Next(key);
      if (command.has_start_decode()) started.push_back(command.start_decode());
    }
    return started;
  }

  std::unique_ptr<CoreHarness> h_;
};

}  // namespace tandem::router
