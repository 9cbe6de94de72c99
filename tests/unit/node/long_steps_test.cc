// Goal: what a node waits for is never given up because of a step, or a pause of the process, that
// took longer than the wait may: a healthy sequence goes on, and a loan that came meanwhile is
// used. Nor because another wait, which has its own deadline, keeps the memory.
#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

class LongStepsTest : public BorrowingTest {
 protected:
  static absl::Status Failure(const node::NodeActions& actions) {
    for (const auto& [router, event] : actions.events)
      if (event.has_leg_failed()) return rpc::FromWire(event.leg_failed().status());
    return absl::OkStatus();
  }
  absl::Status Tick() {
    core_->OnTick(now_);
    return Failure(resources_->TakeActions());
  }
  // Steps, with nobody who lends, until the sequence gets no block.
  void StepUntilStarved() {
    for (int i = 0; i < 400; ++i) {
      const bool computes = !core_->PlanStep(now_).empty();
      const node::NodeActions actions = resources_->TakeActions();
      if (computes) core_->OnStepDone(std::vector<engine::SampledToken>(Sampled()), now_);
      for (const auto& [router, event] : actions.events)
        if (event.has_loan_wanted()) Send(Refused(event.loan_wanted()));
      if (!computes) return;
    }
    ADD_FAILURE() << "the sequence gets all blocks that it needs";
  }
  size_t Sampled() const {
    const auto planned = resources_->scheduler().planned();
    return static_cast<size_t>(std::count_if(planned.begin(), planned.end(),
                                             [](const auto& slice) { return slice.sample; }));
  }
};

TEST_F(LongStepsTest, ALongStepStarvesNoSequence) {
  Begin();
  for (int i = 0; i < 3; ++i) Step();  // the first token has a deadline
  for (int i = 0; i < 3; ++i) {
    const auto slices = core_->PlanStep(now_);
    ASSERT_FALSE(slices.empty());
    const auto sampled = engine_->Step(slices, [](int) {});
    now_ += node::Borrower::kStarvedMax + absl::Seconds(1);
    core_->OnStepDone(sampled, now_);
    EXPECT_OK(Failure(resources_->TakeActions()));
    EXPECT_OK(Tick());
  }
}

TEST_F(LongStepsTest, APauseOfTheProcessStarvesNoSequence) {
  Begin();
  StepUntilStarved();
  now_ += node::Borrower::kStarvedMax + absl::Seconds(1);
  EXPECT_OK(Tick()) << "there may be a loan on the way";
  for (int64_t i = 1; i < node::Borrower::kStalledPlansMin; ++i) {
    EXPECT_TRUE(core_->PlanStep(now_).empty());
    EXPECT_OK(Tick());
  }
  EXPECT_TRUE(core_->PlanStep(now_).empty());
  EXPECT_EQ(Tick().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(used(), 0);
}

// It has memory. What it waits for has bounds of its own.
TEST_F(LongStepsTest, ASequenceThatWaitsForACreditorIsNotStarved) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Granted(wanted, wanted.units()));
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  ASSERT_NE(slices[0].remote, nullptr);
  slices[0].remote->Take(slices[0].remote->lent[0], absl::DeadlineExceededError("late"));
  core_->OnStepDone(std::vector<engine::SampledToken>(Sampled()), now_);
  ASSERT_TRUE(resources_->scheduler().running().begin()->second->awaits_creditors);
  for (int64_t i = 0; i < 2 * node::Borrower::kStalledPlansMin; ++i) {
    now_ += node::Borrower::kStarvedMax;
    EXPECT_TRUE(core_->PlanStep(now_).empty());
    EXPECT_OK(Tick());
  }
}

// The other's prompt may be on its way for longer than a sequence may starve.
TEST_F(LongStepsTest, ASequenceThatWaitsForTheBlocksOfALeaseIsNotStarved) {
  Send(Answer("a", 40, 60));
  v1::NodeCommand receiving = Answer("b", 40, 20);
  receiving.mutable_start_decode()->mutable_sequence()->set_cache_salt("b");
  receiving.mutable_start_decode()->set_local_prefill_tokens_max(0);
  receiving.mutable_start_decode()->set_deadline_s(120);
  const node::NodeActions reserved = Send(receiving);
  ASSERT_EQ(reserved.events.size(), 1u);
  ASSERT_NE(reserved.events[0].second.reserved().lease_id(), 0u);
  StepUntilStarved();
  for (int64_t i = 0; i < 2 * node::Borrower::kStalledPlansMin; ++i) {
    now_ += node::Borrower::kStarvedMax / 4;
    EXPECT_TRUE(core_->PlanStep(now_).empty());
    EXPECT_OK(Tick());
  }
  Send(Abort("b"));
  EXPECT_EQ(core_->PlanStep(now_).size(), 1u) << "it has the blocks now";
}

TEST_F(LongStepsTest, ALoanThatBecomesReadyDuringALongStepIsUsed) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  const node::NodeActions granted = Send(Granted(wanted, 0));
  const auto id = std::get<transfer::OpenExport>(granted.transfer[0]).export_id;
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  const auto sampled = engine_->Step(slices, [](int) {});
  now_ += node::Borrower::kSendTimeMax + absl::Seconds(1);
  core_->OnStepDone(sampled, now_);
  node::NodeActions actions = Send(transfer::ExportDone{.export_id = id});
  EXPECT_EQ(Count<lending::ReturnLoan>(actions), 0);
  core_->OnTick(now_);
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 0);
  const auto lent = core_->PlanStep(now_);
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_NE(lent[0].remote, nullptr);
  EXPECT_EQ(resources_->counters().loans_taken(), 1);
}

}  // namespace
}  // namespace tandem::decode_node
