// Goal: a loan of many large blocks is sent in its time at the pace that the debtor's steps allow:
// it asks for no more than that, and sends faster when the time runs out. Nothing is sent twice.
// One that moves has time for its bytes.
#include <limits>
#include <map>

#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

constexpr int kUnitBlocks = 8, kUnits = 16;
constexpr absl::Duration kStep = absl::Milliseconds(50);
// What a block takes of the transfer thread. 3 % of a step are 1.5 ms.
constexpr absl::Duration kOfABlock = absl::Milliseconds(4);

class LoanPaceTest : public BorrowingTest {
 protected:
  LoanPaceTest()
      : BorrowingTest({.unit_tokens = kUnitBlocks * kBlockTokens,
                       .context_tokens = 4000,
                       .lend_blocks = kLendable,
                       .blocks = 600,
                       .batch_tokens = 4000}) {
    v1::NodeCommand answer = Answer("r", (kUnits + 2) * kUnitBlocks * kBlockTokens, 1500);
    v1::StartDecode& start = *answer.mutable_start_decode();
    start.set_local_prefill_tokens_max(4000);
    for (TokenId& token : *start.mutable_sequence()->mutable_prompt()) token %= 100;
    EXPECT_EQ(Refusal(Send(answer)).code(), absl::StatusCode::kUnknown) << "not refused";
    // Until the node knows what its steps take.
    for (int i = 0; i < 300; ++i) TimedStep();
  }
  // A step whose creditors all answer.
  node::NodeActions TimedStep() {
    const auto slices = core_->PlanStep(now_);
    node::NodeActions actions = resources_->TakeActions();
    const auto sampled =
        std::count_if(slices.begin(), slices.end(), [](const auto& slice) { return slice.sample; });
    now_ += kStep;
    core_->OnStepDone(std::vector<engine::SampledToken>(static_cast<size_t>(sampled)), now_);
    return actions;
  }
  static v1::NodeCommand Plan(int64_t blocks) {
    v1::NodeCommand command;
    command.mutable_borrow_blocks()->set_blocks(blocks);
    command.mutable_borrow_blocks()->set_creditor_node_id("c");
    return command;
  }
  // Takes part in what the core wants: grants its loans, acknowledges what it has sent, and sends
  // home what it fetches.
  void Answer(const node::NodeActions& actions) {
    for (const auto& [router, event] : actions.events) {
      if (event.has_blocks_wanted())
        Send(transfer::LeaseInstalled{.lease = LeaseId(event.blocks_wanted().lease_id()),
                                      .epoch = Epoch(1)});
      if (!event.has_loan_wanted()) continue;
      asked_.push_back(event.loan_wanted().units());
      v1::NodeCommand granted = Granted(event.loan_wanted(), 0);
      granted.mutable_loan_answer()->set_lease_id(9);
      Answer(Send(granted));
    }
    for (const transfer::TransferCommand& command : actions.transfer) {
      if (const auto* push = std::get_if<transfer::PushRange>(&command)) {
        pushed_ += push->ordinal_count;
        most_pushed_ = std::max(most_pushed_, push->ordinal_count);
        sent_[push->export_id] += push->ordinal_count;
      }
      cancelled_ += std::holds_alternative<transfer::CancelExport>(command);
      const auto* end = std::get_if<transfer::FinishExport>(&command);
      if (end != nullptr && acknowledges_) {
        const int64_t blocks = sent_[end->export_id];
        Send(transfer::ExportDone{
            .export_id = end->export_id,
            .bytes_sent = blocks * resources_->scheduler().spec().layout.block_bytes(),
            .processor_time = static_cast<double>(blocks) * kOfABlock});
      }
    }
  }
  void RunSteps(int count) {
    for (int i = 0; i < count; ++i) {
      Answer(TimedStep());
      core_->OnTick(now_);
      Answer(resources_->TakeActions());
      now_ += between_;
    }
  }
  using BorrowingTest::Answer;
  // One unit, which tells what a block takes.
  void Learn() {
    Send(Plan(kUnitBlocks));
    RunSteps(20);
    ASSERT_EQ(asked_, std::vector<int>{1});
    ASSERT_EQ(owed(), kUnitBlocks);
    asked_.clear();
    most_pushed_ = pushed_ = 0;
  }

  int64_t owed() const {
    const v1::NodeLoad load = core_->load();
    return load.debts_size() == 1 ? load.debts(0).blocks() : 0;
  }

  std::vector<int> asked_;  // units
  std::map<transfer::ExportId, int64_t> sent_;
  int64_t pushed_ = 0;
  int32_t most_pushed_ = 0;
  int cancelled_ = 0;
  bool acknowledges_ = true;  // what is sent
  absl::Duration between_;    // steps, in which nothing is measured
};

TEST_F(LoanPaceTest, NoMoreIsAskedForThanThePaceSends) {
  Learn();
  Send(Plan((kUnits - 1) * kUnitBlocks));
  RunSteps(60);
  ASSERT_EQ(asked_.size(), 1u);
  // 50 steps in 2.5 s, and a block before each.
  EXPECT_EQ(asked_[0], 6);
  EXPECT_EQ(most_pushed_, 1);
  EXPECT_EQ(pushed_, asked_[0] * kUnitBlocks);
  EXPECT_EQ(cancelled_, 0);
  EXPECT_EQ(owed(), 7 * kUnitBlocks) << "all are used";
}

// The pauses are no steps, so the pace does not know of them.
TEST_F(LoanPaceTest, ALoanThatWouldComeTooLateIsSentFaster) {
  Learn();
  Send(Plan((kUnits - 1) * kUnitBlocks));
  between_ = absl::Milliseconds(150);
  RunSteps(30);
  ASSERT_EQ(asked_, std::vector<int>{6});
  EXPECT_EQ(pushed_, 6 * kUnitBlocks);
  EXPECT_GT(most_pushed_, 1);
  EXPECT_EQ(cancelled_, 0);
  EXPECT_EQ(owed(), 7 * kUnitBlocks);
}

// What is sent does not arrive in time.
TEST_F(LoanPaceTest, ASlowLinkIsGivenHalfAsMuchTheNextTime) {
  Learn();
  acknowledges_ = false;
  for (const int units : {6, 3, 1, 1}) {
    Send(Plan((kUnits - 1) * kUnitBlocks));
    RunSteps(110);
    ASSERT_EQ(asked_, std::vector<int>{units});
    ASSERT_EQ(cancelled_, 1);
    asked_.clear();
    cancelled_ = 0;
  }
  acknowledges_ = true;
  for (const int units : {1, 2, 4, 6}) {
    Send(Plan(units * kUnitBlocks));
    RunSteps(60);
    ASSERT_EQ(asked_, std::vector<int>{units});
    asked_.clear();
  }
}

// ---- loans that move

TEST_F(LendingTest, ALoanThatMovesHereIsGivenTimeForItsBytes) {
  v1::NodeCommand command = Lend(1, 3);
  command.mutable_lend_blocks()->set_from_node_id("d8");
  const node::NodeActions actions = Send(command);
  ASSERT_EQ(actions.transfer.size(), 1u);
  const absl::Duration of_bytes = cost::LoanBytesTime(3 * block_bytes());
  EXPECT_GT(of_bytes, absl::ZeroDuration());
  EXPECT_EQ(std::get<transfer::OpenLease>(actions.transfer[0]).deadline,
            now_ + node::Lender::kFetchTimeMax + of_bytes);
}

TEST_F(LendingTest, TheTimeOfALoansBytesIsBounded) {
  EXPECT_EQ(cost::LoanBytesTime(0), absl::ZeroDuration());
  EXPECT_EQ(cost::LoanBytesTime(500'000'000), absl::Seconds(2));
  EXPECT_EQ(cost::LoanBytesTime(-1), absl::ZeroDuration());
  EXPECT_EQ(cost::LoanBytesTime(std::numeric_limits<int64_t>::max()), cost::kLoanBytesTimeMax);
}

}  // namespace
}  // namespace tandem::decode_node
