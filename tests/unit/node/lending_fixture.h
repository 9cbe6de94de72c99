// A decode core that lends and borrows, and the messages that a router sends it about loans.
#pragma once

#include <algorithm>

#include "common/rpc/convert.h"
#include "tests/unit/node/decode_core_fixture.h"

namespace tandem::decode_node {

inline constexpr int kLendable = 5;

class LendingTest : public DecodeCoreTest {
 protected:
  // A unit is a block.
  LendingTest()
      : LendingTest(
            {.unit_tokens = kBlockTokens, .context_tokens = 400, .lend_blocks = kLendable}) {}
  explicit LendingTest(const Setup& setup) : DecodeCoreTest(setup) {
    core_->OnRouterJoined(kRouter, now_);
  }

  static std::vector<kv::BlockHash> Hashes(int count, TokenId first = 100) {
    kv::BlockHasher hasher{kv::BlockKey()};
    std::vector<TokenId> tokens(static_cast<size_t>(count * kBlockTokens), first);
    return hasher.Blocks(hasher.Salt("m", "n", ""), tokens, kBlockTokens);
  }
  static v1::NodeCommand Lend(uint64_t loan, int blocks) {
    v1::NodeCommand command;
    v1::LendBlocks& lend = *command.mutable_lend_blocks();
    lend.set_debtor_node_id("d9");
    lend.set_debtor_incarnation(4);
    lend.set_loan(loan);
    lend.set_units(blocks);
    lend.set_hashes(kv::PackHashes(Hashes(blocks, static_cast<TokenId>(loan))));
    return command;
  }
  static lending::LoanKey Key(uint64_t loan) {
    return {{NodeId("d9"), Incarnation(4)}, LoanId(loan)};
  }
  static v1::LoanOffered Offered(const node::NodeActions& actions) {
    if (actions.events.size() != 1 || !actions.events[0].second.has_loan_offered()) {
      ADD_FAILURE() << "no offer";
      return {};
    }
    return actions.events[0].second.loan_offered();
  }
  static absl::StatusCode Code(const v1::LoanOffered& offered) {
    return rpc::FromWire(offered.status()).code();
  }
  int64_t block_bytes() const { return resources_->scheduler().spec().layout.block_bytes(); }
  template <typename Command>
  static int Count(const node::NodeActions& actions) {
    int count = 0;
    for (const auto& command : actions.lending) count += std::holds_alternative<Command>(command);
    return count;
  }
  node::NodeActions Send(const lending::LendingEvent& event) {
    core_->OnLending(event, now_);
    return resources_->TakeActions();
  }
  using DecodeCoreTest::Send;
};

class BorrowingTest : public LendingTest {
 protected:
  using LendingTest::LendingTest;
  // A sequence of 100 prompt tokens whose answer needs more blocks than the node has.
  void Begin() { Send(Answer("r", 100, 200)); }
  static v1::NodeCommand Answer(const std::string& id, int prompt, int tokens) {
    v1::NodeCommand command = Run(id, prompt, /*local_max=*/1000);
    v1::StopParams& stop = *command.mutable_start_decode()->mutable_sequence()->mutable_stop();
    stop.set_max_tokens(tokens);
    stop.set_ignore_eos(true);
    command.mutable_start_decode()->set_borrow_blocks_max(20);
    return command;
  }
  // A step whose creditors all answer.
  node::NodeActions StepLent() {
    const auto slices = core_->PlanStep(now_);
    node::NodeActions actions = resources_->TakeActions();
    const auto sampled =
        std::count_if(slices.begin(), slices.end(), [](const auto& slice) { return slice.sample; });
    if (!slices.empty())
      core_->OnStepDone(std::vector<engine::SampledToken>(static_cast<size_t>(sampled)), now_);
    return actions;
  }
  // Steps until the core asks for a loan.
  v1::LoanWanted StepUntilWanted() {
    for (int i = 0; i < 200; ++i) {
      for (const auto& [router, event] : Step().events)
        if (event.has_loan_wanted()) return event.loan_wanted();
    }
    ADD_FAILURE() << "no loan is wanted";
    return {};
  }
  static v1::NodeCommand Refused(const v1::LoanWanted& wanted) {
    v1::NodeCommand command;
    command.mutable_loan_answer()->set_loan(wanted.loan());
    *command.mutable_loan_answer()->mutable_status() =
        rpc::ToWire(absl::ResourceExhaustedError("full"));
    return command;
  }
  static v1::NodeCommand Granted(const v1::LoanWanted& wanted, int held) {
    v1::NodeCommand command;
    v1::LoanAnswer& answer = *command.mutable_loan_answer();
    answer.set_loan(wanted.loan());
    answer.set_creditor_node_id("c");
    answer.set_units(wanted.units());
    answer.set_held_blocks(held);
    answer.set_lease_id(held == wanted.units() ? 0 : 9);
    answer.set_epoch(1);
    return command;
  }
};

}  // namespace tandem::decode_node
