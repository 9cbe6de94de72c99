// Goal: a debtor knows of each creditor how fast lent blocks arrive and how long a question takes,
// as measured; of the last creditors only, and of their present incarnation; and it tells its
// routers when that has changed, and only then.
#include "common/node/creditor_costs.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "common/node/cost_report.h"
#include "tests/unit/node/lending_fixture.h"

namespace tandem::node {
namespace {

constexpr int32_t kLayers = 30;

lending::DebtorId Creditor(const std::string& name, uint64_t incarnation = 1) {
  return {NodeId(name), Incarnation(incarnation)};
}

TEST(CreditorCosts, TellsTheRateAndTheRoundTripOfEachCreditor) {
  CreditorCosts costs;
  // A gigabyte a second after 100 us.
  for (int i = 1; i <= 40; ++i) {
    const int64_t bytes = 50'000 * (1 + i % 8);
    costs.OnSent(Creditor("a"), bytes, absl::Microseconds(100 + bytes / 1000));
  }
  costs.OnRoundTrip(Creditor("b"), absl::Microseconds(40));
  const auto links = costs.Links(kLayers);
  ASSERT_EQ(links.size(), 2);
  EXPECT_EQ(links[0].creditor_node_id(), "a");
  EXPECT_EQ(links[0].creditor_incarnation(), 1u);
  EXPECT_NEAR(links[0].blocks().bytes_per_second(), 1e9, 2e7);
  EXPECT_NEAR(links[0].blocks().fixed_us(), 100, 5);
  EXPECT_EQ(links[0].blocks().samples(), 40);
  EXPECT_EQ(links[0].round_trip_us(), 0);
  EXPECT_EQ(links[1].round_trip_us(), 40);
  EXPECT_EQ(links[1].blocks().samples(), 0);
  EXPECT_EQ(links[1].layers(), kLayers);
}

TEST(CreditorCosts, ARoundTripFollowsTheTruthSlowly) {
  CreditorCosts costs;
  costs.OnRoundTrip(Creditor("a"), absl::Microseconds(40));
  costs.OnRoundTrip(Creditor("a"), absl::Microseconds(400));
  EXPECT_EQ(costs.Links(kLayers)[0].round_trip_us(), 40 + 360 * CreditorCosts::kNewWeight);
  for (int i = 0; i < 60; ++i) costs.OnRoundTrip(Creditor("a"), absl::Microseconds(400));
  EXPECT_NEAR(costs.Links(kLayers)[0].round_trip_us(), 400, 1);
}

TEST(CreditorCosts, WhatIsNoMeasurementChangesNothing) {
  CreditorCosts costs;
  costs.OnSent(Creditor("a"), 0, absl::Seconds(1));
  costs.OnSent(Creditor("a"), 100, absl::ZeroDuration());
  costs.OnRoundTrip(Creditor("a"), absl::ZeroDuration());
  costs.OnRoundTrip(Creditor("a"), -absl::Seconds(1));
  EXPECT_EQ(costs.version(), 0);
  EXPECT_TRUE(costs.Links(kLayers).empty());
}

TEST(CreditorCosts, ANewIncarnationBeginsAnew) {
  CreditorCosts costs;
  costs.OnSent(Creditor("a", 1), 1000, absl::Microseconds(10));
  costs.OnRoundTrip(Creditor("a", 2), absl::Microseconds(30));
  const auto links = costs.Links(kLayers);
  ASSERT_EQ(links.size(), 1);
  EXPECT_EQ(links[0].creditor_incarnation(), 2u);
  EXPECT_EQ(links[0].blocks().samples(), 0);
}

TEST(CreditorCosts, TheCreditorWithoutNewsForLongestIsForgotten) {
  CreditorCosts costs;
  for (size_t i = 0; i < CreditorCosts::kCreditorsMax; ++i)
    costs.OnRoundTrip(Creditor(absl::StrCat("c", i)), absl::Microseconds(30));
  costs.OnRoundTrip(Creditor("c0"), absl::Microseconds(30));
  costs.OnRoundTrip(Creditor("new"), absl::Microseconds(30));
  std::set<std::string> kept;
  for (const v1::CreditorLink& link : costs.Links(kLayers)) kept.insert(link.creditor_node_id());
  EXPECT_EQ(kept.size(), CreditorCosts::kCreditorsMax);
  EXPECT_TRUE(kept.contains("c0") && kept.contains("new"));
  EXPECT_FALSE(kept.contains("c1"));
}

}  // namespace
}  // namespace tandem::node

namespace tandem::decode_node {
namespace {

class LinkReportTest : public BorrowingTest {};

// The rate comes from the export's last stretch, and not from its whole time, in which the node
// computed steps.
TEST_F(LinkReportTest, AnExportTellsTheRateAndHeartbeatsTellOfIt) {
  node::CostReport report;
  const auto heartbeat = [&] {
    v1::NodeMessage message;
    report.Update(*resources_);
    report.AddTo(message);
    return message;
  };
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  v1::NodeCommand granted = Granted(wanted, 0);
  granted.mutable_loan_answer()->set_creditor_incarnation(5);
  const node::NodeActions actions = Send(granted);
  EXPECT_TRUE(heartbeat().has_step_cost());
  const auto& exported = std::get<transfer::OpenExport>(actions.transfer[0]);
  Send(transfer::ExportDone{.export_id = exported.export_id,
                            .bytes_sent = 1 << 20,
                            .transfer_time = absl::Seconds(3),
                            .last_stretch = absl::Microseconds(64),
                            .last_stretch_bytes = 1 << 16});
  const v1::NodeMessage told = heartbeat();
  EXPECT_FALSE(told.has_step_cost()) << "no step has run since";
  ASSERT_EQ(told.creditor_links_size(), 1);
  const v1::CreditorLink& link = told.creditor_links(0);
  EXPECT_EQ(link.creditor_node_id(), "c");
  EXPECT_EQ(link.creditor_incarnation(), 5u);
  EXPECT_EQ(link.blocks().samples(), 1);
  EXPECT_NEAR(link.blocks().actual_us(), 64, 1e-6);
  EXPECT_EQ(link.layers(), engine_->spec().layout.num_layers);
  EXPECT_EQ(heartbeat().creditor_links_size(), 0) << "nothing has changed";
  resources_->OnRoundTrips({{{{NodeId("c"), Incarnation(5)}, absl::Microseconds(25)}}});
  EXPECT_EQ(heartbeat().creditor_links(0).round_trip_us(), 25);
  report.OnRouterJoined();
  EXPECT_EQ(heartbeat().creditor_links_size(), 1) << "a new router knows nothing";
  EXPECT_EQ(heartbeat().creditor_links_size(), 0);
}

TEST_F(LinkReportTest, RecallsAreCounted) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Granted(wanted, wanted.units()));
  StepLent();
  Send(lending::LoanRecalled{LoanId(wanted.loan())});
  Send(lending::LoanRecalled{LoanId(9999)});  // none of ours
  EXPECT_EQ(resources_->counters().loans_recalled(), 1);
}

}  // namespace
}  // namespace tandem::decode_node
