// Goal: a prompt that is longer than both nodes' pools is split. The decode
// node reserves room for its end and names the units before it; the prefill node lends exactly
// these, sends the rest once, and names the loans in FIN; the decode node takes them over before
// its next step, and computes the prompt itself when it cannot. Nothing stays lent.
#include <set>
#include <variant>

#include "common/node/borrower.h"
#include "prefill_node/prefill_core.h"
#include "tests/unit/node/lending_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 150 tokens, 10 blocks, of pools of 8. The decode node keeps 4: blocks 7 to 9, and one more.
constexpr int kPrompt = 150, kLentUnits = 7;

v1::KvLoan Loan(int first, int units, const std::string& creditor) {
  v1::KvLoan loan;
  loan.set_first_unit(first);
  loan.set_units(units);
  loan.set_creditor_node_id(creditor);
  loan.set_creditor_incarnation(3);
  return loan;
}

class TakeOverTest : public decode_node::BorrowingTest {
 protected:
  static v1::NodeCommand Long(int64_t prefill_blocks = 8) {
    v1::NodeCommand command = Answer("r", kPrompt, 20);
    command.mutable_start_decode()->set_local_prefill_tokens_max(0);
    command.mutable_start_decode()->set_prefill_blocks(prefill_blocks);
    return command;
  }
  // Receives the prompt's end with these loans; returns what the node does then.
  node::NodeActions Receive(std::vector<v1::KvLoan> loans) {
    const node::NodeActions reserved = Send(Long());
    lease_ = reserved.events.at(0).second.reserved().lease_id();
    transfer::LeaseInstalled installed = Installed(lease_, 5);
    installed.loans = std::move(loans);
    return Send(installed);
  }
  static std::vector<v1::LoanWanted> Wanted(const node::NodeActions& actions) {
    std::vector<v1::LoanWanted> wanted;
    for (const auto& [router, event] : actions.events)
      if (event.has_loan_wanted()) wanted.push_back(event.loan_wanted());
    return wanted;
  }
  // The first row of the next step's only slice; nullopt when there is no step. It is computed.
  std::optional<int64_t> NextRow() {
    const auto slices = core_->PlanStep(now_);
    if (slices.empty()) return std::nullopt;
    EXPECT_THAT(slices, SizeIs(1));
    const int64_t row = slices[0].num_computed;
    const size_t sampled = slices[0].sample ? 1 : 0;
    core_->OnStepDone(std::vector<engine::SampledToken>(sampled), now_);
    return row;
  }
  uint64_t lease_ = 0;
};

TEST_F(TakeOverTest, RoomIsReservedForThePromptsEndOnly) {
  const node::NodeActions actions = Send(Long());
  ASSERT_THAT(actions.events, SizeIs(1));
  const v1::Reserved& reserved = actions.events[0].second.reserved();
  EXPECT_FALSE(reserved.computes_locally());
  EXPECT_EQ(reserved.lent_units(), kLentUnits);
  EXPECT_EQ(reserved.cached_tokens(), 0);
  ASSERT_THAT(actions.transfer, SizeIs(1));
  const auto& lease = std::get<transfer::OpenLease>(actions.transfer[0]);
  EXPECT_EQ(lease.first_ordinal, kLentUnits);
  EXPECT_THAT(lease.blocks, SizeIs(3));
  EXPECT_EQ(used(), 4);
}

TEST_F(TakeOverTest, WithoutAPrefillNodeThatLendsThePromptIsComputedHere) {
  const node::NodeActions actions = Send(Long(/*prefill_blocks=*/0));
  EXPECT_TRUE(actions.events.at(0).second.reserved().computes_locally());
  EXPECT_EQ(actions.events.at(0).second.reserved().lent_units(), 0);
}

TEST_F(TakeOverTest, TheSequenceGoesOnOnceAllLoansAreGranted) {
  const node::NodeActions actions = Receive({Loan(0, 4, "c"), Loan(4, 3, "c2")});
  const std::vector<v1::LoanWanted> wanted = Wanted(actions);
  ASSERT_THAT(wanted, SizeIs(2));
  EXPECT_EQ(wanted[0].first_unit(), 0);
  EXPECT_EQ(wanted[0].units(), 4);
  EXPECT_EQ(wanted[0].prefer_node_id(), "c");
  EXPECT_EQ(wanted[0].from_node_id(), "c");
  EXPECT_EQ(wanted[0].from_incarnation(), 3);
  EXPECT_EQ(wanted[1].from_node_id(), "c2");
  EXPECT_EQ(NextRow(), std::nullopt);
  Send(Granted(wanted[0], 4));
  EXPECT_EQ(NextRow(), std::nullopt) << "the second loan is still asked for";
  const node::NodeActions granted = Send(Granted(wanted[1], 3));
  EXPECT_EQ(Count<lending::UseLoan>(granted), 1);
  EXPECT_EQ(NextRow(), kPrompt) << "no prompt token is computed here";
  EXPECT_EQ(resources_->counters().loans_taken_over(), 2);
  EXPECT_EQ(resources_->counters().loans_lost(), 0);
}

TEST_F(TakeOverTest, ARefusedLoanCostsAComputation) {
  const std::vector<v1::LoanWanted> wanted = Wanted(Receive({Loan(0, 4, "c"), Loan(4, 3, "c2")}));
  ASSERT_THAT(wanted, SizeIs(2));
  Send(Granted(wanted[0], 4));
  Send(Refused(wanted[1]));
  EXPECT_EQ(NextRow(), 0);
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 2);
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
}

TEST_F(TakeOverTest, ACreditorThatHasLostABlockGrantsNothing) {
  const std::vector<v1::LoanWanted> wanted = Wanted(Receive({Loan(0, 7, "c")}));
  ASSERT_THAT(wanted, SizeIs(1));
  Send(Granted(wanted[0], 6));
  EXPECT_EQ(NextRow(), 0);
}

// The sequence would wait for the rest until its deadline.
TEST_F(TakeOverTest, ACreditorThatTakesFewerUnitsGrantsNothing) {
  const std::vector<v1::LoanWanted> wanted = Wanted(Receive({Loan(0, 4, "c"), Loan(4, 3, "c2")}));
  ASSERT_THAT(wanted, SizeIs(2));
  Send(Granted(wanted[0], 4));
  v1::NodeCommand fewer = Granted(wanted[1], 3);
  fewer.mutable_loan_answer()->set_units(2);
  Send(fewer);
  EXPECT_EQ(NextRow(), 0);
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 2);
}

TEST_F(TakeOverTest, AnAnswerThatDoesNotComeCostsAComputation) {
  ASSERT_THAT(Wanted(Receive({Loan(0, 7, "c")})), SizeIs(1));
  now_ += node::Borrower::kAnswerTimeMax + cost::LoanBytesTime(7 * block_bytes());
  core_->OnTick(now_);
  EXPECT_EQ(NextRow(), 0);
}

TEST_F(TakeOverTest, LoansOfOtherUnitsAreNotTakenOver) {
  for (const auto& loans : std::vector<std::vector<v1::KvLoan>>{
           {},
           {Loan(0, 6, "c")},
           {Loan(0, 8, "c")},
           {Loan(0, 4, "c"), Loan(5, 2, "c")},
           {Loan(0, 0, "c"), Loan(0, 7, "c")},
           {Loan(0, 7, "")},
       }) {
    MakeFresh();
    core_->OnRouterJoined(decode_node::kRouter, now_);
    EXPECT_THAT(Wanted(Receive(loans)), IsEmpty());
    EXPECT_EQ(NextRow(), 0);
  }
}

TEST_F(TakeOverTest, WithoutASenderThePromptIsComputedHere) {
  lease_ = Send(Long()).events.at(0).second.reserved().lease_id();
  Send(NewEpoch("r", lease_, 2, /*local_max=*/-1));
  const node::NodeActions answer = Send(
      transfer::EpochRaised{.lease = LeaseId(lease_), .epoch = Epoch(2), .verified_blocks = 1});
  const v1::Reserved& reserved = answer.events.at(0).second.reserved();
  EXPECT_TRUE(reserved.computes_locally());
  EXPECT_EQ(reserved.received_tokens(), 0);
  EXPECT_EQ(reserved.lent_units(), 0);
  Send(transfer::LeaseDrained{.lease = LeaseId(lease_)});
  EXPECT_EQ(NextRow(), 0);
}

TEST_F(TakeOverTest, AnAbortReturnsTheLoans) {
  Receive({Loan(0, 7, "c")});
  Send(Abort("r"));
  core_->PlanStep(now_);
  resources_->TakeActions();
  EXPECT_TRUE(core_->idle());
  EXPECT_EQ(used(), 0);
}

// ---- the prefill node

class SplitPromptTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 4;
  SplitPromptTest() {
    engine_ = *engine::NewHashEngine({.num_layers = kLayers,
                                      .block_tokens = decode_node::kBlockTokens,
                                      .unit_tokens = decode_node::kBlockTokens});
    EXPECT_OK(engine_->AllocateKv(decode_node::kBlocks));
    resources_ = std::make_unique<node::NodeResources>(
        node::SchedulerOptions{.spec = engine_->spec(),
                               .num_blocks = decode_node::kBlocks,
                               .max_batch_tokens = 24,
                               .max_sequences = 2,
                               .borrows = true,
                               .lend_blocks_max = 4});
    core_ = std::make_unique<prefill_node::PrefillCore>(*resources_);
    core_->OnRouterJoined(decode_node::kRouter, now_);
  }
  static v1::NodeCommand Prefill(int lent_units, int prompt = kPrompt) {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    prefill.mutable_leg()->set_request_id("r");
    prefill.mutable_leg()->set_attempt(1);
    for (int i = 0; i < prompt; ++i) prefill.mutable_sequence()->add_prompt(i);
    prefill.mutable_sequence()->mutable_stop()->set_max_tokens(9);
    prefill.set_lease_id(31);
    prefill.set_epoch(1);
    prefill.set_receiver_node_id("decode-0");
    prefill.set_receiver_address("addr");
    prefill.set_deadline_s(60);
    prefill.set_lent_units(lent_units);
    prefill.set_borrow_blocks_max(20);
    return command;
  }
  void Send(const v1::NodeCommand& command) {
    core_->OnCommand(decode_node::kRouter, command, now_);
    Take();
  }
  // Keeps what the core does; answers its questions for creditors as `lends_` says.
  void Take() {
    const node::NodeActions actions = resources_->TakeActions();
    for (const auto& command : actions.transfer) {
      if (const auto* push = std::get_if<transfer::PushRange>(&command)) {
        for (int o = 0; o < push->ordinal_count; ++o)
          for (int l = 0; l < push->layer_count; ++l)
            pushed_.emplace(push->first_ordinal + o, push->first_layer + l);
      }
      if (const auto* open = std::get_if<transfer::OpenExport>(&command)) opened_.push_back(*open);
      if (const auto* fin = std::get_if<transfer::FinishExport>(&command)) fin_ = *fin;
      cancelled_ |= std::holds_alternative<transfer::CancelExport>(command);
    }
    for (const auto& command : actions.lending)
      returned_ += std::holds_alternative<lending::ReturnLoan>(command) ? 1 : 0;
    for (const auto& [router, event] : actions.events) {
      if (event.has_loan_wanted()) wanted_.push_back(event.loan_wanted());
      if (event.has_leg_failed()) failed_ = event.leg_failed();
      if (event.has_refused()) refused_ = event.refused();
      if (event.has_loan_offered()) offered_ = event.loan_offered();
    }
  }
  // Another node asks this one for a loan.
  static v1::NodeCommand LendOneUnit() {
    kv::BlockHasher hasher{kv::BlockKey()};
    const std::vector<TokenId> tokens(decode_node::kBlockTokens, 7);
    v1::NodeCommand command;
    v1::LendBlocks& lend = *command.mutable_lend_blocks();
    lend.set_debtor_node_id("d9");
    lend.set_debtor_incarnation(4);
    lend.set_loan(1);
    lend.set_units(1);
    lend.set_hashes(kv::PackHashes(
        hasher.Blocks(hasher.Salt("m", "n", ""), tokens, decode_node::kBlockTokens)));
    return command;
  }
  void Answer() {
    for (const v1::LoanWanted& wanted : std::exchange(wanted_, {})) {
      EXPECT_THAT(wanted.avoid_node_ids(), ElementsAre("decode-0"));
      asked_units_ += wanted.units();
      v1::NodeCommand command;
      v1::LoanAnswer& answer = *command.mutable_loan_answer();
      answer.set_loan(wanted.loan());
      if (lends_) {
        answer.set_creditor_node_id("c");
        answer.set_units(wanted.units());
        answer.set_held_blocks(wanted.units());
      } else {
        *answer.mutable_status() = rpc::ToWire(absl::ResourceExhaustedError("full"));
      }
      Send(command);
    }
  }
  // Steps whose creditors answer, until FIN, or the leg's end.
  void Run() {
    for (int i = 0; i < 200 && !fin_.has_value() && !failed_.has_value(); ++i) {
      Step();
      Answer();
      now_ += absl::Milliseconds(100);
      core_->OnTick(now_);
      Take();
    }
  }
  void Step() {
    const auto slices = core_->PlanStep(now_);
    Take();
    if (slices.empty()) return;
    const auto sampled =
        std::count_if(slices.begin(), slices.end(), [](const auto& slice) { return slice.sample; });
    for (int layer = 0; layer < kLayers; ++layer) core_->OnLayerDone(layer);
    core_->OnStepDone(std::vector<engine::SampledToken>(static_cast<size_t>(sampled)), now_);
    Take();
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<node::NodeResources> resources_;
  std::unique_ptr<prefill_node::PrefillCore> core_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  bool lends_ = true, cancelled_ = false;
  int asked_units_ = 0, returned_ = 0;
  std::multiset<std::pair<int, int>> pushed_;
  std::vector<transfer::OpenExport> opened_;
  std::vector<v1::LoanWanted> wanted_;
  std::optional<transfer::FinishExport> fin_;
  std::optional<v1::LegFailed> failed_;
  std::optional<v1::Refused> refused_;
  std::optional<v1::LoanOffered> offered_;
};

TEST_F(SplitPromptTest, ThePromptsEndIsSentAndItsBeginningLent) {
  Send(Prefill(kLentUnits));
  Run();
  ASSERT_TRUE(fin_.has_value());
  EXPECT_EQ(asked_units_, kLentUnits);
  int next = 0;
  for (const v1::KvLoan& loan : fin_->loans) {
    EXPECT_EQ(loan.first_unit(), next);
    EXPECT_EQ(loan.creditor_node_id(), "c");
    next += loan.units();
  }
  EXPECT_EQ(next, kLentUnits);
  ASSERT_THAT(opened_, SizeIs(1));
  EXPECT_EQ(opened_[0].first_ordinal, kLentUnits);
  EXPECT_THAT(opened_[0].blocks, SizeIs(3));
  EXPECT_THAT(pushed_, SizeIs(3 * kLayers));
  for (int ordinal = kLentUnits; ordinal < 10; ++ordinal)
    for (int layer = 0; layer < kLayers; ++layer)
      EXPECT_EQ(pushed_.count({ordinal, layer}), 1) << ordinal << " " << layer;
  // The loans are kept for the decode node.
  core_->OnTransfer(transfer::ExportDone{.export_id = opened_[0].export_id}, now_);
  core_->PlanStep(now_);
  Take();
  EXPECT_EQ(returned_, 0);
  EXPECT_FALSE(core_->idle());
  // What it only keeps is no debt, so it lends meanwhile.
  Send(LendOneUnit());
  ASSERT_TRUE(offered_.has_value());
  EXPECT_OK(rpc::FromWire(offered_->status()));
  EXPECT_EQ(offered_->units(), 1);
  core_->OnLending(lending::LoanReturned{{{NodeId("d9"), Incarnation(4)}, LoanId(1)}}, now_);
  core_->OnTransfer(transfer::LeaseDrained{.lease = LeaseId(offered_->lease_id())}, now_);
  now_ += node::Borrower::kSplitLoansKept;
  core_->OnTick(now_);
  Take();
  EXPECT_EQ(returned_, static_cast<int>(fin_->loans.size()));
  EXPECT_TRUE(core_->idle());
}

TEST_F(SplitPromptTest, APromptThatFitsLendsWhatItsDecodeNodeCannotHold) {
  Send(Prefill(/*lent_units=*/3, /*prompt=*/100));
  Run();
  ASSERT_TRUE(fin_.has_value());
  EXPECT_EQ(asked_units_, 3);
  EXPECT_EQ(opened_.at(0).first_ordinal, 3);
  EXPECT_THAT(pushed_, SizeIs(4 * kLayers));
}

TEST_F(SplitPromptTest, WithoutACreditorThePromptIsGivenUpAndTheLeaseStands) {
  lends_ = false;
  Send(Prefill(kLentUnits));
  const absl::Time begun = now_;
  Run();
  ASSERT_TRUE(failed_.has_value());
  EXPECT_TRUE(failed_->sender_side()) << "nothing wrong was sent";
  EXPECT_LT(now_ - begun, absl::Seconds(2));
  EXPECT_FALSE(cancelled_) << "the export was not opened";
  EXPECT_TRUE(core_->idle());
  EXPECT_EQ(core_->load().blocks_used(), 0);
}

// Loans get on between two steps only, and a step of another prompt may be longer than the wait.
TEST_F(SplitPromptTest, ALongStepDoesNotEndAPromptThatWaitsForACreditor) {
  Send(Prefill(kLentUnits));
  for (int i = 0; i < 50; ++i) {
    const bool computes = !core_->PlanStep(now_).empty();
    Take();
    if (!computes) break;
    for (int layer = 0; layer < kLayers; ++layer) core_->OnLayerDone(layer);
    core_->OnStepDone(std::vector<engine::SampledToken>(), now_);
    Take();
  }
  ASSERT_FALSE(wanted_.empty());
  core_->OnTick(now_);
  Take();
  now_ += absl::Seconds(6);
  core_->OnTick(now_);
  Take();
  EXPECT_FALSE(failed_.has_value());
  for (int64_t i = 0; i < node::Borrower::kStalledPlansMin; ++i) {
    core_->PlanStep(now_);
    Take();
  }
  core_->OnTick(now_);
  Take();
  ASSERT_TRUE(failed_.has_value());
  EXPECT_EQ(failed_->status().code(), static_cast<int>(absl::StatusCode::kResourceExhausted));
}

TEST_F(SplitPromptTest, ALostCreditorEndsTheLease) {
  Send(Prefill(/*lent_units=*/3, /*prompt=*/100));
  uint64_t loan = 0;
  for (int i = 0; i < 50 && loan == 0; ++i) {
    Step();
    if (!wanted_.empty()) loan = wanted_[0].loan();
    if (loan == 0) continue;
    Answer();
    core_->PlanStep(now_);  // a step may run: the loan is used from now on
    Take();
  }
  ASSERT_NE(loan, 0);
  core_->OnLending(lending::LoanLost{LoanId(loan), absl::UnavailableError("gone")}, now_);
  core_->OnStepDone(
      std::vector<engine::SampledToken>(resources_->scheduler().planned().empty() ||
                                                !resources_->scheduler().planned()[0].sample
                                            ? 0
                                            : 1),
      now_);
  core_->PlanStep(now_);
  Take();
  ASSERT_TRUE(failed_.has_value());
  EXPECT_FALSE(failed_->sender_side()) << "what was sent may be wrong";
  EXPECT_TRUE(cancelled_);
}

// Nobody has heard of its loans, so nobody will take them over.
TEST_F(SplitPromptTest, LoansOfAPromptThatIsAbortedAreReturnedAtOnce) {
  Send(Prefill(kLentUnits));
  for (int i = 0; i < 50 && wanted_.empty(); ++i) Step();
  ASSERT_FALSE(wanted_.empty());
  Answer();
  Step();
  ASSERT_FALSE(fin_.has_value());
  v1::NodeCommand abort;
  abort.mutable_abort()->mutable_leg()->set_request_id("r");
  abort.mutable_abort()->mutable_leg()->set_attempt(1);
  Send(abort);
  for (const transfer::OpenExport& open : opened_)
    core_->OnTransfer(transfer::ExportFailed{.export_id = open.export_id,
                                             .status = absl::CancelledError("aborted")},
                      now_);
  core_->PlanStep(now_);
  Take();
  EXPECT_EQ(returned_, 1);
}

// Layers of the failed rows may have been sent already.
TEST_F(SplitPromptTest, ALateCreditorEndsTheLeaseToo) {
  Send(Prefill(/*lent_units=*/3, /*prompt=*/100));
  for (int i = 0; i < 50 && wanted_.empty(); ++i) Step();
  ASSERT_FALSE(wanted_.empty());
  Answer();
  const auto slices = core_->PlanStep(now_);
  Take();
  ASSERT_EQ(slices.size(), 1u);
  ASSERT_NE(slices[0].remote, nullptr);
  slices[0].remote->Take(slices[0].remote->lent[0], absl::DeadlineExceededError("late"));
  core_->OnStepDone(std::vector<engine::SampledToken>(slices[0].sample ? 1 : 0), now_);
  core_->PlanStep(now_);
  Take();
  ASSERT_TRUE(failed_.has_value());
  EXPECT_FALSE(failed_->sender_side()) << "what was sent may be wrong";
  EXPECT_EQ(resources_->scheduler().postponed(), 0);
}

TEST_F(SplitPromptTest, UnitsThatCannotBeLentAreRefused) {
  for (const auto& [units, prompt] : {std::pair(10, kPrompt), std::pair(5, kPrompt), {1, 10}}) {
    refused_.reset();
    Send(Prefill(units, prompt));
    ASSERT_TRUE(refused_.has_value()) << units << " of " << prompt;
    EXPECT_EQ(refused_->status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_TRUE(core_->idle());
}

}  // namespace
}  // namespace tandem
