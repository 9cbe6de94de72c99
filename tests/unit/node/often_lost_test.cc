// Goal: a sequence whose creditors grant loans and cannot serve them does not begin again for ever:
// it ends after a few losses in which it got no further. Losses that it recovers from, and several
// at one time, end none.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

class OftenLostTest : public BorrowingTest {
 protected:
  // A creditor that grants what it is asked for, unless the debtor avoids it.
  v1::NodeCommand Answered(const v1::LoanWanted& wanted) const {
    const auto& avoided = wanted.avoid_node_ids();
    for (const std::string& creditor : creditors_) {
      if (std::find(avoided.begin(), avoided.end(), creditor) != avoided.end()) continue;
      v1::NodeCommand granted = Granted(wanted, wanted.units());
      granted.mutable_loan_answer()->set_creditor_node_id(creditor);
      return granted;
    }
    return Refused(wanted);
  }
  // A step; questions about loans fail while `fails_`, and lose them. Returns why the leg ended.
  absl::Status RunStep() {
    now_ += absl::Milliseconds(20);
    core_->OnTick(now_);
    Take(resources_->TakeActions());
    const auto slices = core_->PlanStep(now_);
    Take(resources_->TakeActions());
    std::vector<LoanId> lost;
    int64_t sampled = 0;
    for (const auto& slice : slices) {
      sampled += slice.sample ? 1 : 0;
      if (!fails_ || slice.remote == nullptr) continue;
      for (const engine::LentUnits& lent : slice.remote->lent) {
        slice.remote->Take(lent, absl::UnavailableError("no answer"));
        lost.push_back(lent.loan);
      }
    }
    if (!slices.empty())
      core_->OnStepDone(std::vector<engine::SampledToken>(static_cast<size_t>(sampled)), now_);
    Take(resources_->TakeActions());
    for (const LoanId loan : lost)
      Take(Send(lending::LoanLost{.loan = loan, .why = absl::UnavailableError("no answer")}));
    losses_ += lost.empty() ? 0 : 1;
    return end_;
  }
  void Take(const node::NodeActions& actions) {
    for (const auto& [router, event] : actions.events) {
      if (event.has_leg_failed()) end_ = rpc::FromWire(event.leg_failed().status());
      finished_ |= event.has_leg_finished();
      if (event.has_loan_wanted()) Take(Send(Answered(event.loan_wanted())));
    }
  }
  // Returns how long it ran.
  absl::Duration RunToEnd(absl::Duration most) {
    const absl::Time began = now_;
    while (!finished_ && RunStep().ok() && now_ - began < most) {
    }
    return now_ - began;
  }

  std::vector<std::string> creditors_ = {"c"};
  bool fails_ = true, finished_ = false;
  int losses_ = 0;  // steps that have lost loans
  absl::Status end_;
};

TEST_F(OftenLostTest, ASequenceEndsWhoseCreditorFailsEachQuestion) {
  Begin();
  const absl::Duration time = RunToEnd(absl::Seconds(120));
  EXPECT_EQ(end_.code(), absl::StatusCode::kResourceExhausted) << end_;
  // Its first loss makes room for some more tokens. Then each one needs its creditor again.
  EXPECT_LE(time, (node::Borrower::kLossesMax + 1) * node::Borrower::kAvoidTime);
  EXPECT_EQ(used(), 0);
}

// Each is avoided, but the next one is asked at once.
TEST_F(OftenLostTest, OneOfManyCreditorsAfterAnotherIsNoProgress) {
  for (int i = 0; i < 100; ++i) creditors_.push_back(absl::StrCat("c", i));
  Begin();
  const absl::Duration time = RunToEnd(absl::Seconds(120));
  EXPECT_EQ(end_.code(), absl::StatusCode::kResourceExhausted) << end_;
  EXPECT_LE(time, 2 * node::Borrower::kStarvedMax + absl::Seconds(5));
  EXPECT_GE(losses_, node::Borrower::kLossesMax);
}

TEST_F(OftenLostTest, LossesWithTokensBetweenThemEndNothing) {
  creditors_ = {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"};
  Begin();
  // A creditor fails about each second. In between there are answers.
  for (int i = 0; i < 20000 && !finished_ && end_.ok(); ++i) {
    fails_ = i % 60 == 59;
    EXPECT_OK(RunStep());
  }
  EXPECT_TRUE(finished_) << end_;
  EXPECT_GE(losses_, node::Borrower::kLossesMax);
}

// One host had several creditors.
TEST_F(OftenLostTest, SeveralLossesAtOneTimeCountOnce) {
  Begin();
  fails_ = false;
  const auto lent = [this] {
    const auto& running = resources_->scheduler().running();
    return running.empty() ? 0 : std::ssize(running.begin()->second->remote.lent);
  };
  for (int i = 0; i < 1000 && lent() < 1; ++i) ASSERT_OK(RunStep());
  ASSERT_GE(lent(), 1);
  const node::SequenceId id = resources_->scheduler().running().begin()->second->id;
  const LoanId loan = resources_->scheduler().Get(id).remote.lent[0].loan;
  node::Borrower& borrower = resources_->borrower();
  Take(Send(lending::LoanLost{.loan = loan, .why = absl::UnavailableError("gone")}));
  core_->PlanStep(now_);
  Take(resources_->TakeActions());
  for (int i = 0; i < 2 * node::Borrower::kLossesMax; ++i)
    Take(Send(lending::LoanLost{.loan = loan, .why = absl::UnavailableError("gone")}));
  EXPECT_TRUE(borrower.TakeOftenLost().empty());
}

}  // namespace
}  // namespace tandem::decode_node
