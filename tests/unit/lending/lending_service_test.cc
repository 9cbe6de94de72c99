// Goal: debtors get the right answers about their own loans from several creditors over both kinds
// of links, loans begin, grow, are recalled, returned and expire as the protocol says, and whatever
// one process does wrong costs its own loans only.
#include "common/lending/lending_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

// Both kinds of links: of the same host, and of another one.
class LendingLinks : public testing::TestWithParam<std::string> {
 protected:
  DebtorNode::Options At(const std::string& name) const {
    DebtorNode::Options options;
    options.name = name;
    options.host = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, LendingLinks, testing::Values("host", "elsewhere"),
                         [](const auto& info) { return info.param == "host" ? "Shared" : "Tcp"; });

TEST_P(LendingLinks, TwoDebtorsGetRightAnswersFromTwoCreditorsAtOnce) {
  const size_t descriptors = NumDescriptors();
  {
    CreditorNode::Options first, second;
    first.name = "first";
    second.name = "second";
    CreditorNode creditors[2] = {CreditorNode(first), CreditorNode(second)};
    const auto run = [&](const std::string& name, uint64_t seed) {
      const auto random = NewSeededRandom(seed);
      DebtorNode debtor(At(name));
      const engine::UnitSpan units = {.first = 3, .end = 12};
      for (uint64_t loan = 0; loan < 6; ++loan) {
        debtor.Borrow(creditors[loan % 2], loan, units, static_cast<int32_t>(loan * 100 + seed));
      }
      for (int step = 0; step < 30; ++step) {
        for (int32_t index = 0; index < kNumLayers; ++index) {
          Layer layer(index);
          const uint64_t num_parts = 1 + random->Below(20);
          for (uint64_t i = 0; i < num_parts; ++i) {
            const uint64_t loan = random->Below(6);
            const auto begin = static_cast<int32_t>(3 + random->Below(8));
            const int32_t rows = random->Below(4) == 0 ? 1 + random->Below(3000) : 1;
            layer.Add(loan, units, static_cast<int32_t>(loan * 100 + seed),
                      {.first = begin, .end = begin + 1 + (begin < 11 ? 1 : 0)}, rows,
                      kQFloats + static_cast<int64_t>(random->Below(3)), *random);
          }
          layer.Exchange(*debtor.links);
          for (size_t i = 0; i < layer.parts.size(); ++i) {
            EXPECT_TRUE(layer.IsRight(i)) << layer.parts[i].status;
          }
        }
        EXPECT_TRUE(debtor.links->Progress().empty());
      }
      EXPECT_EQ(debtor.links->counters().creditors, 2);
      EXPECT_EQ(debtor.links->counters().failures, 0);
    };
    std::thread other([&] { run("b", 2); });
    run("a", 1);
    other.join();
    for (CreditorNode& creditor : creditors) {
      EXPECT_GT(creditor.service->counters().answers, 0);
      EXPECT_EQ(creditor.service->counters().refusals, 0);
      EXPECT_EQ(creditor.service->counters().connections_refused, 0);
    }
  }
  EXPECT_EQ(NumDescriptors(), descriptors);
}

TEST_P(LendingLinks, ALoanGrowsWhileItIsUsed) {
  const auto random = NewSeededRandom(3);
  CreditorNode creditor({});
  DebtorNode debtor(At("debtor"));
  debtor.Borrow(creditor, 1, {.first = 0, .end = 2}, 10);
  Layer before(0);
  before.Add(1, {.first = 0, .end = 2}, 10, {.first = 0, .end = 2}, 1, kQFloats, *random);
  before.Exchange(*debtor.links);
  EXPECT_TRUE(before.IsAllRight());
  // The same blocks as those of one loan of five units.
  const auto all = BlocksFrom(10, 5 * kUnitBlocks);
  creditor.service->Handle(ServeLoan{.key = debtor.key(1),
                                     .units = {.first = 2, .end = 5},
                                     .blocks = {all.begin() + 2 * kUnitBlocks, all.end()}});
  Layer after(1);
  after.Add(1, {.first = 0, .end = 5}, 10, {.first = 0, .end = 5}, 7, kQFloats, *random);
  after.Add(1, {.first = 0, .end = 5}, 10, {.first = 1, .end = 4}, 1, kQFloats, *random);
  after.Exchange(*debtor.links);
  EXPECT_TRUE(after.IsAllRight());
}

TEST_P(LendingLinks, ARecalledLoanIsToldOnceAndAnsweredUntilItIsStopped) {
  const auto random = NewSeededRandom(4);
  CreditorNode creditor({});
  DebtorNode debtor(At("debtor"));
  debtor.Borrow(creditor, 1, {.first = 0, .end = 2}, 10);
  debtor.Borrow(creditor, 2, {.first = 0, .end = 2}, 50);
  creditor.service->Handle(RecallLoan{.key = debtor.key(1)});
  const auto ask = [&](uint64_t loan, int32_t first_block) {
    Layer layer(0);
    layer.Add(loan, {.first = 0, .end = 2}, first_block, {.first = 0, .end = 2}, 1, kQFloats,
              *random);
    layer.Exchange(*debtor.links);
    return layer.IsAllRight();
  };
  EXPECT_TRUE(ask(1, 10) && ask(2, 50) && ask(1, 10));
  const auto events = debtor.links->Progress();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<LoanRecalled>(events[0]).loan, LoanId(1));
  EXPECT_TRUE(ask(1, 10));
  EXPECT_TRUE(debtor.links->Progress().empty());

  creditor.service->Handle(StopServing{.key = debtor.key(1)});
  EXPECT_FALSE(ask(1, 10));
  EXPECT_TRUE(ask(2, 50));
  const auto lost = debtor.links->Progress();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(std::get<LoanLost>(lost[0]).loan, LoanId(1));
  EXPECT_EQ(std::get<LoanLost>(lost[0]).why.code(), absl::StatusCode::kNotFound);
}

TEST_P(LendingLinks, AReturnedLoanIsReportedAndIsAnsweredNoMore) {
  const auto random = NewSeededRandom(5);
  CreditorNode creditor({});
  DebtorNode debtor(At("debtor"));
  for (const uint64_t loan : {1, 2}) debtor.Borrow(creditor, loan, {.first = 0, .end = 1}, 10);
  debtor.links->Handle(ReturnLoan{.loan = LoanId(1)});  // before the link is open
  Layer layer(0);
  layer.Add(2, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  layer.Exchange(*debtor.links);
  EXPECT_TRUE(layer.IsAllRight());
  debtor.links->Progress();
  EXPECT_EQ(creditor.Await<LoanReturned>().key, debtor.key(1));
  creditor.service->Handle(StopServing{.key = debtor.key(1)});
  debtor.links->Handle(ReturnLoan{.loan = LoanId(2)});
  EXPECT_EQ(creditor.Await<LoanReturned>().key, debtor.key(2));
  Layer after(0);
  after.Add(2, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  after.Exchange(*debtor.links);
  EXPECT_EQ(after.parts[0].status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(creditor.num_events(), 0u);
}

TEST_P(LendingLinks, ALoanOfASilentDebtorExpiresAndOneThatIsRenewedDoesNot) {
  const auto random = NewSeededRandom(6);
  ManualClock clock;
  CreditorNode::Options creditor_options;
  creditor_options.clock = &clock;
  creditor_options.lease_time = absl::Milliseconds(400);  // it looks after an eighth in real time
  CreditorNode creditor(creditor_options);
  DebtorNode::Options silent_options = At("silent"), lively_options = At("lively");
  silent_options.lease_time = lively_options.lease_time = absl::Milliseconds(400);
  silent_options.clock = lively_options.clock = &clock;
  DebtorNode silent(silent_options), lively(lively_options);
  silent.Borrow(creditor, 1, {.first = 0, .end = 1}, 10);
  lively.Borrow(creditor, 1, {.first = 0, .end = 1}, 20);
  // The renewal that is sent is the only one that the debtor waits for.
  const auto renew = [&] {
    const int64_t before = creditor.service->counters().bytes_out;
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (creditor.service->counters().bytes_out == before && absl::Now() < give_up) {
      EXPECT_TRUE(lively.links->Progress().empty());
    }
    EXPECT_GT(creditor.service->counters().bytes_out, before);
  };
  clock.Advance(absl::Milliseconds(390));
  renew();
  clock.Advance(absl::Milliseconds(20));
  EXPECT_EQ(creditor.Await<LoanExpired>().key, silent.key(1));
  for (int i = 0; i < 3; ++i) {
    clock.Advance(absl::Milliseconds(300));
    renew();
  }
  EXPECT_EQ(creditor.num_events(), 0u);
  Layer late(0), in_time(0);
  late.Add(1, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  in_time.Add(1, {.first = 0, .end = 1}, 20, {.first = 0, .end = 1}, 1, kQFloats, *random);
  // Its link is still being dialled; a clock that stands gives it all time.
  late.Exchange(*silent.links);
  in_time.Exchange(*lively.links);
  EXPECT_FALSE(late.parts[0].status.ok());
  EXPECT_TRUE(in_time.IsAllRight());
}

TEST_P(LendingLinks, ADebtorThatAsksAboutAnothersLoanIsRefused) {
  const auto random = NewSeededRandom(7);
  CreditorNode creditor({});
  DebtorNode owner(At("owner")), other(At("other"));
  owner.Borrow(creditor, 1, {.first = 0, .end = 1}, 10);
  other.links->Handle(UseLoan{.loan = LoanId(1), .creditor = creditor.address()});
  Layer asked(0);
  asked.Add(1, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  asked.Exchange(*other.links);
  EXPECT_EQ(asked.parts[0].status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(other).loan, LoanId(1));
  EXPECT_EQ(creditor.service->counters().refusals, 1);
  Layer own(0);
  own.Add(1, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  own.Exchange(*owner.links);
  EXPECT_TRUE(own.IsAllRight());
}

TEST_P(LendingLinks, OneWithoutTheSecretGetsNoLink) {
  CreditorNode creditor({});
  DebtorNode::Options options = At("stranger");
  options.secret = "another";
  DebtorNode stranger(options);
  stranger.Borrow(creditor, 1, {.first = 0, .end = 1}, 10);
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(stranger).why.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(creditor.service->counters().debtors, 0);
}

TEST_P(LendingLinks, ACreditorOfAnotherRunIsNotTheOneThatWasMeant) {
  CreditorNode creditor({});
  DebtorNode debtor(At("debtor"));
  CreditorAddress earlier = creditor.address();
  earlier.incarnation = Incarnation(6);
  debtor.links->Handle(UseLoan{.loan = LoanId(1), .creditor = earlier});
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(debtor).loan, LoanId(1));
  debtor.links->Handle(UseLoan{.loan = LoanId(2), .creditor = creditor.address()});
  const auto random = NewSeededRandom(8);
  creditor.service->Handle(
      ServeLoan{.key = debtor.key(2), .units = {.first = 0, .end = 1}, .blocks = BlocksFrom(1, 2)});
  Layer layer(0);
  layer.Add(2, {.first = 0, .end = 1}, 1, {.first = 0, .end = 1}, 1, kQFloats, *random);
  layer.Exchange(*debtor.links);
  EXPECT_TRUE(layer.IsAllRight());
  EXPECT_EQ(creditor.service->counters().connections_refused, 1);
}

TEST(LendingServiceTest, ACreditorWithoutTcpIsUnreachableFromOtherHosts) {
  CreditorNode::Options options;
  options.tcp_host = "";
  CreditorNode creditor(options);
  DebtorNode::Options elsewhere;
  elsewhere.host = "elsewhere";
  DebtorNode debtor(elsewhere);
  debtor.Borrow(creditor, 1, {.first = 0, .end = 1}, 10);
  const auto events = debtor.links->Progress();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<LoanLost>(events[0]).why.code(), absl::StatusCode::kUnavailable);
}

TEST(LendingServiceTest, StopServingWaitsForTheAnswerThatIsBeingComputed) {
  const auto random = NewSeededRandom(9);
  Gate gate;
  CreditorNode::Options options;
  options.gate = &gate;
  CreditorNode creditor(options);
  DebtorNode debtor({});
  for (const uint64_t loan : {1, 2}) debtor.Borrow(creditor, loan, {.first = 0, .end = 1}, 10);
  gate.Set(true);
  Layer layer(0);
  layer.Add(1, {.first = 0, .end = 1}, 10, {.first = 0, .end = 1}, 1, kQFloats, *random);
  layer.parts[0].lent.loan = LoanId(1);
  std::thread asking([&] { layer.Exchange(*debtor.links); });
  gate.AwaitArrivals(1);
  creditor.service->Handle(StopServing{.key = debtor.key(2)});  // not in use: does not wait
  std::atomic<bool> has_stopped{false};
  std::thread stopping([&] {
    creditor.service->Handle(StopServing{.key = debtor.key(1)});
    EXPECT_EQ(gate.passed(), 1);
    has_stopped.store(true);
  });
  EXPECT_FALSE(has_stopped.load());
  gate.Set(false);
  stopping.join();
  asking.join();
  EXPECT_TRUE(layer.IsAllRight());
}

TEST(LendingServiceTest, ManyLoansAreServedAndThoseBeyondTheBoundExpireAtOnce) {
  const auto random = NewSeededRandom(10);
  CreditorNode creditor({});
  DebtorNode debtor({});
  constexpr uint64_t kLoans = 4096;  // LoanTable::kLoansOfDebtorMax
  for (uint64_t loan = 0; loan < kLoans; ++loan) {
    debtor.Borrow(creditor, loan, {.first = 0, .end = 1}, static_cast<int32_t>(loan));
  }
  Layer layer(0);
  for (uint64_t loan = 0; loan < kLoans; ++loan) {
    layer.Add(loan, {.first = 0, .end = 1}, static_cast<int32_t>(loan), {.first = 0, .end = 1}, 1,
              kQFloats, *random);
  }
  layer.Exchange(*debtor.links);
  EXPECT_TRUE(layer.IsAllRight());
  EXPECT_EQ(creditor.num_events(), 0u);
  debtor.Borrow(creditor, kLoans, {.first = 0, .end = 1}, 5);
  EXPECT_EQ(creditor.Await<LoanExpired>().key, debtor.key(kLoans));
  for (uint64_t loan = 0; loan < kLoans; ++loan) {
    debtor.links->Handle(ReturnLoan{.loan = LoanId(loan)});
    if (loan % 500 == 0) debtor.links->Progress();
  }
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (creditor.num_events() < kLoans && absl::Now() < give_up) debtor.links->Progress();
  EXPECT_EQ(creditor.num_events(), kLoans);
}

}  // namespace
}  // namespace tandem::lending
