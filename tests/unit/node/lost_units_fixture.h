// A decode core whose sequence lends units and loses them, beside creditors that answer. Thread
// safety: none.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/node/copying_creditors.h"
#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {

inline constexpr int kUnitBlocks = 2, kUnitTokens = kUnitBlocks * kBlockTokens;
inline constexpr int64_t kPool = 16;
inline constexpr int kPrompt = 100, kAnswer = 400;

class LostUnitsTest : public BorrowingTest {
 protected:
  LostUnitsTest() : LostUnitsTest(kPool) {}
  explicit LostUnitsTest(int64_t blocks, int64_t batch_tokens = 64)
      : LostUnitsTest(Setup{.unit_tokens = kUnitTokens,
                            .context_tokens = 1000,
                            .lend_blocks = kLendable,
                            .blocks = blocks,
                            .batch_tokens = batch_tokens}) {}
  explicit LostUnitsTest(const Setup& setup) : BorrowingTest(setup) {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    options.unit_tokens = kUnitTokens;
    options.context_tokens = 1000;
    creditors_.emplace(options);
    engine_->SetRemoteAttention(&*creditors_);
    step_time_ = absl::Milliseconds(10);
  }

  static v1::NodeCommand Answer(const std::string& id, int prompt, int tokens) {
    v1::NodeCommand command = BorrowingTest::Answer(id, prompt, tokens);
    command.mutable_start_decode()->set_borrow_blocks_max(100);
    return command;
  }
  const node::Sequence& First() const { return resources_->scheduler().Get(node::SequenceId(1)); }
  // The creditor of the next loan.
  std::string NextCreditor() { return names_.at(granted_++ % names_.size()); }

  // Answers what the core has asked for.
  void AnswerLoans(const node::NodeActions& actions) {
    for (const auto& [router, event] : actions.events) {
      if (event.has_tokens()) TakeTokens(event.tokens());
      if (!event.has_loan_wanted()) continue;
      v1::LoanWanted wanted = event.loan_wanted();
      if (wanted.lost()) {
        AnswerLost(wanted);
        continue;
      }
      if (!lends_) {
        pending_.push_back(Refused(wanted));
        continue;
      }
      v1::NodeCommand answer = Granted(wanted, wanted.units() * kUnitBlocks);
      answer.mutable_loan_answer()->set_creditor_node_id(NextCreditor());
      pending_.push_back(answer);
    }
    for (const storage::StorageCommand& command : actions.storage) OnStorageCommand(command);
    for (const auto& command : actions.lending)
      if (const auto* back = std::get_if<lending::ReturnLoan>(&command))
        returned_.insert(back->loan);
  }
  virtual void OnStorageCommand(const storage::StorageCommand&) {}
  // Another node holds the first `holder_units_` of lost units.
  void AnswerLost(const v1::LoanWanted& wanted) {
    lost_wanted_.push_back(wanted);
    const int units = std::min(holder_units_, wanted.units());
    const auto blocks = lost_blocks_.find(wanted.first_unit());
    if (units == 0 || blocks == lost_blocks_.end()) {
      pending_.push_back(Refused(wanted));
      return;
    }
    v1::NodeCommand command = Granted(wanted, units * kUnitBlocks);
    command.mutable_loan_answer()->set_units(units);
    command.mutable_loan_answer()->set_creditor_node_id("holder");
    creditors_->loans[LoanId(wanted.loan())] = {
        .creditor = "holder",
        .blocks = {blocks->second.begin(), blocks->second.begin() + units * kUnitBlocks}};
    pending_.push_back(command);
  }
  // Grants them, after copying what the creditor is to hold.
  void Grant() {
    for (const v1::NodeCommand& command : std::exchange(pending_, {})) {
      const v1::LoanAnswer& answer = command.loan_answer();
      for (const auto& loan : resources_->borrower().loans()) {
        if (loan.id.value() != answer.loan()) continue;
        const node::Sequence* sequence = resources_->scheduler().Find(loan.sequence);
        if (sequence == nullptr || std::ssize(sequence->blocks) < loan.units.end * kUnitBlocks)
          continue;
        std::vector<BlockId> blocks(sequence->blocks.begin() + loan.units.first * kUnitBlocks,
                                    sequence->blocks.begin() + loan.units.end * kUnitBlocks);
        if (std::count(blocks.begin(), blocks.end(), engine::kNoBlock) > 0) continue;
        // The last layers are those with a window, which are not lent.
        creditors_->Keep(loan.id, answer.creditor_node_id(), blocks, engine_->arena(),
                         engine_->spec().layout.num_layers - setup_.windowed_layers);
      }
      AnswerLoans(Send(command));
    }
  }
  void TakeTokens(const v1::TokensGenerated& generated) {
    for (const auto& step : generated.steps())
      for (const auto& token : step.tokens())
        tokens_[step.leg().request_id()].push_back(token.token_id());
  }
  // A step; returns the rows that it computes. None: nothing could be computed.
  int64_t RunStep() {
    Grant();
    const auto slices = core_->PlanStep(now_);
    int64_t rows = 0;
    for (const auto& slice : slices) rows += slice.num_new;
    const node::NodeActions planned = resources_->TakeActions();
    now_ += step_time_;
    if (!slices.empty()) {
      const auto sampled = engine_->Step(slices, [](int) {});
      EXPECT_OK(sampled.status());
      core_->OnStepDone(sampled, now_);
    }
    AnswerLoans(planned);
    AnswerLoans(resources_->TakeActions());
    core_->OnTick(now_);
    AnswerLoans(resources_->TakeActions());
    rows_ += rows;
    return rows;
  }
  // Until the first sequence has so many loans in use.
  void RunUntilLoans(size_t count) {
    for (int i = 0; i < 1000 && First().remote.lent.size() < count; ++i) RunStep();
    ASSERT_EQ(First().remote.lent.size(), count);
    RunStep();
  }
  // Until the sequence of `id` has all of its tokens, or has not had any for long.
  void RunToEnd(const std::string& id, int tokens = kAnswer) {
    for (int i = 0; i < 3000 && std::ssize(tokens_[id]) < tokens; ++i) RunStep();
    ASSERT_EQ(std::ssize(tokens_[id]), tokens) << id;
  }
  // Until nothing of a loss is left to be done. Returns the rows beside those of generated tokens.
  int64_t RunThroughRebuild(const std::string& id) {
    const int64_t rows = rows_;
    const auto tokens = std::ssize(tokens_[id]);
    for (int i = 0; i < 3000 && First().rebuild != nullptr; ++i) RunStep();
    EXPECT_EQ(First().rebuild, nullptr);
    return rows_ - rows - (std::ssize(tokens_[id]) - tokens);
  }
  void Lose(LoanId loan) {
    for (const auto& lent : First().remote.lent)
      if (lent.loan == loan && creditors_->loans.contains(loan))
        lost_blocks_[lent.units.first] = creditors_->loans.at(loan).blocks;
    AnswerLoans(Send(lending::LoanLost{.loan = loan, .why = absl::UnavailableError("gone")}));
  }
  // The rows of a loan that is about to be lost. The prefix cache forgets what it still has of
  // them.
  int64_t RowsToLose(size_t index) {
    const engine::UnitSpan units = First().remote.lent.at(index).units;
    kv::BlockPool& pool = resources_->scheduler().pool();
    for (int i = units.first * kUnitBlocks; i < units.end * kUnitBlocks; ++i) {
      for (const BlockId block : pool.MatchBlocks({First().hashes[static_cast<size_t>(i)]})) {
        pool.Forget(block);
        pool.Unref(block);
      }
    }
    return int64_t{units.size()} * kUnitTokens;
  }
  LoanId LoanOf(size_t index) const { return First().remote.lent.at(index).loan; }
  int64_t UnitsOf(size_t index) const { return First().remote.lent.at(index).units.size(); }

  // What sequence "r" generates when nothing is lent.
  static std::vector<TokenId> Expected(int prompt = kPrompt, int answer = kAnswer);
  void ExpectAllGone() {
    for (int i = 0; i < 3; ++i) RunStep();
    EXPECT_EQ(used(), 0);
    EXPECT_EQ(core_->load().debts_size(), 0);
    EXPECT_TRUE(core_->idle());
  }

  std::optional<CopyingCreditors> creditors_;
  std::vector<std::string> names_ = {"c0", "c1", "c2", "c3", "c4"};
  size_t granted_ = 0;
  bool lends_ = true;
  int holder_units_ = 0;  // of lost ones, from the first on, that another node holds
  std::map<int, std::vector<BlockId>> lost_blocks_;  // of lost loans, by the first unit
  std::vector<v1::LoanWanted> lost_wanted_;
  std::vector<v1::NodeCommand> pending_;
  std::set<LoanId> returned_;
  std::map<std::string, std::vector<TokenId>> tokens_;
  int64_t rows_ = 0;
};

// One with room for everything.
class RoomyTest : public LostUnitsTest {
 public:
  RoomyTest() : LostUnitsTest(200) {}
  void TestBody() override {}
  std::vector<TokenId> Run(int prompt, int answer) {
    Send(Answer("r", prompt, answer));
    RunToEnd("r", answer);
    EXPECT_EQ(core_->load().debts_size(), 0);
    return tokens_["r"];
  }
};

inline std::vector<TokenId> LostUnitsTest::Expected(int prompt, int answer) {
  RoomyTest roomy;
  return roomy.Run(prompt, answer);
}

}  // namespace tandem::decode_node
