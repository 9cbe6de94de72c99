// Goal: a step's cost arrives as it was sent, and a peer's impossible figures are refused by name.
#include "common/rpc/cost_convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/cost/link_cost.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::testing::HasSubstr;

cost::StepProfile Learned() {
  cost::StepCost cost;
  for (int i = 1; i < 50; ++i) {
    cost::StepShape shape;
    shape.Add(100 * i, 1 + i % 7, i % 3 == 0);
    cost.Observe(shape, 1000 + 13 * i);
  }
  return cost.profile();
}

TEST(CostConvert, ArrivesAsSent) {
  const cost::StepProfile sent = Learned();
  const auto arrived = FromWire(ToWire(sent));
  ASSERT_OK(arrived.status());
  cost::StepShape shape;
  shape.Add(1000, 1, true);
  shape.Add(0, 100, false);
  EXPECT_EQ(arrived->Predict(shape).us, sent.Predict(shape).us);
  EXPECT_EQ(arrived->Predict(shape).error_us, sent.Predict(shape).error_us);
  EXPECT_EQ(arrived->samples, 49);
  EXPECT_EQ(arrived->actual_us, sent.actual_us);
  EXPECT_EQ(ToWire(*arrived).SerializeAsString(), ToWire(sent).SerializeAsString());
}

TEST(CostConvert, RefusesWhatCannotBe) {
  for (const double figure : {-1.0, std::nan(""), 1.0 / 0.0}) {
    v1::StepCost wire = ToWire(Learned());
    wire.set_prompt_row_us(figure);
    EXPECT_EQ(FromWire(wire).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(FromWire(wire).status().message(), HasSubstr("prompt_row_us"));
  }
  v1::StepCost wire = ToWire(Learned());
  wire.set_samples(-1);
  EXPECT_EQ(FromWire(wire).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CostConvert, ALinksCostArrivesAsSentAndIsCheckedLikewise) {
  cost::LinkCost blocks;
  for (int i = 1; i < 20; ++i) blocks.Observe(1000 * i, 50 + i);
  const cost::CreditorProfile sent{.blocks = blocks.profile(), .round_trip_us = 31.5, .layers = 30};
  const v1::CreditorLink wire = ToWire(sent);
  const auto arrived = FromWire(wire);
  ASSERT_OK(arrived.status());
  EXPECT_EQ(arrived->AskUs(), 30 * 31.5);
  EXPECT_EQ(arrived->blocks.PredictUs(5000), sent.blocks.PredictUs(5000));
  EXPECT_NEAR(sent.blocks.PredictUs(5000), blocks.Predict(5000).value, 1e-9);
  EXPECT_EQ(ToWire(*arrived).SerializeAsString(), wire.SerializeAsString());
  for (const double figure : {-1.0, std::nan(""), 1.0 / 0.0}) {
    v1::CreditorLink odd = wire;
    odd.set_round_trip_us(figure);
    EXPECT_EQ(FromWire(odd).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(FromWire(odd).status().message(), HasSubstr("round_trip_us"));
    odd = wire;
    odd.mutable_blocks()->set_actual_us(figure);
    EXPECT_EQ(FromWire(odd).status().code(), absl::StatusCode::kInvalidArgument);
  }
  v1::CreditorLink odd = wire;
  odd.set_layers(-1);
  odd.set_creditor_node_id(std::string(10'000, 'x'));
  EXPECT_LT(FromWire(odd).status().message().size(), 300u) << "a sender chooses the length";
}

}  // namespace
}  // namespace tandem::rpc
