// Goal: a creditor that dies, hangs, is slow or cannot be reached fails its own parts only, after
// the debtor's patience, and its loans are lost or usable again as the header says.
#include "common/lending/creditor_links.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

constexpr engine::UnitSpan kUnits = {.first = 0, .end = 2};

// A layer with one part of each of two loans: 1 of the good creditor, 2 of the bad one.
Layer TwoParts(int32_t index, Random& random) {
  Layer layer(index);
  layer.Add(1, kUnits, 10, kUnits, 1, kQFloats, random);
  layer.Add(2, kUnits, 20, kUnits, 1, kQFloats, random);
  return layer;
}

struct TwoCreditors {
  explicit TwoCreditors(const DebtorNode::Options& debtor_options) : debtor(debtor_options) {
    CreditorNode::Options good_options, bad_options;
    good_options.name = "good";
    bad_options.name = "bad";
    bad_options.gate = &gate;
    good = std::make_unique<CreditorNode>(good_options);
    bad = std::make_unique<CreditorNode>(bad_options);
    debtor.Borrow(*good, 1, kUnits, 10);
    debtor.Borrow(*bad, 2, kUnits, 20);
    Layer layer = TwoParts(0, *random);
    layer.Exchange(*debtor.links);
    EXPECT_TRUE(layer.IsAllRight());
    EXPECT_TRUE(debtor.links->Progress().empty());
  }
  const std::unique_ptr<Random> random = NewSeededRandom(11);
  Gate gate;
  DebtorNode debtor;
  std::unique_ptr<CreditorNode> good, bad;
};

TEST(CreditorLinksTest, AStepWaitsForALateCreditorOnceAndItIsUsableWhenItHasAnswered) {
  DebtorNode::Options options;
  options.patience = absl::Seconds(1);
  options.answer_time_max = options.lease_time = absl::Seconds(60);
  TwoCreditors world(options);
  world.gate.Set(true);
  Layer late = TwoParts(1, *world.random);
  const absl::Time began = absl::Now();
  late.Exchange(*world.debtor.links);
  EXPECT_GE(absl::Now() - began, absl::Seconds(1));
  EXPECT_TRUE(late.IsRight(0));
  EXPECT_EQ(late.parts[1].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(world.debtor.links->awaits_answers());
  // The step's other layers, and the next steps: nothing waits for what is owed.
  for (int step = 0; step < 3; ++step) {
    for (int32_t index = 0; index < kNumLayers; ++index) {
      Layer layer = TwoParts(index, *world.random);
      const absl::Duration waited = world.debtor.links->counters().waited;
      layer.Exchange(*world.debtor.links);
      EXPECT_TRUE(layer.IsRight(0));
      EXPECT_EQ(layer.parts[1].status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_LT(world.debtor.links->counters().waited - waited, absl::Milliseconds(900));
    }
    const std::vector<LendingEvent> events = world.debtor.links->Progress();
    if (step > 0) {
      EXPECT_TRUE(events.empty()) << "a late answer is no lost loan";
      continue;
    }
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(std::get<CreditorLate>(events[0]).creditor.node, NodeId("bad"));
  }
  world.gate.Set(false);
  EXPECT_EQ(AwaitAtDebtor<CreditorAnswers>(world.debtor).creditor.node, NodeId("bad"));
  EXPECT_FALSE(world.debtor.links->awaits_answers());
  Layer again = TwoParts(2, *world.random);
  again.Exchange(*world.debtor.links);
  EXPECT_TRUE(again.IsAllRight());
  EXPECT_TRUE(world.debtor.links->Progress().empty()) << "told once";
}

// Makes the bad creditor late, and then answer. Returns why its part failed.
std::string BeLateOnce(TwoCreditors& world) {
  world.gate.Set(true);
  Layer late = TwoParts(1, *world.random);
  late.Exchange(*world.debtor.links);
  world.gate.Set(false);
  EXPECT_EQ(AwaitAtDebtor<CreditorAnswers>(world.debtor).creditor.node, NodeId("bad"));
  return std::string(late.parts[1].status.message());
}

TEST(CreditorLinksTest, ASlowCreditorIsGivenMoreTimeUntilItIsQuickAgain) {
  DebtorNode::Options options;
  options.patience = absl::Milliseconds(200);
  options.answer_time_max = options.lease_time = absl::Seconds(60);
  TwoCreditors world(options);
  EXPECT_EQ(BeLateOnce(world), "no answer from creditor bad within 200ms");
  EXPECT_EQ(BeLateOnce(world), "no answer from creditor bad within 400ms");
  for (int step = 0; step < 100; ++step) {
    Layer quick = TwoParts(1, *world.random);
    quick.Exchange(*world.debtor.links);
    EXPECT_TRUE(quick.IsAllRight());
    EXPECT_TRUE(world.debtor.links->Progress().empty());
  }
  EXPECT_EQ(BeLateOnce(world), "no answer from creditor bad within 200ms");
}

TEST(CreditorLinksTest, TheQuickOneOfTwoCreditorsIsNotWaitedForLonger) {
  DebtorNode::Options options;
  options.patience = absl::Milliseconds(100);
  options.answer_time_max = options.lease_time = absl::Seconds(60);
  TwoCreditors world(options);
  BeLateOnce(world);
  Gate gate;
  CreditorNode::Options third_options;
  third_options.name = "third";
  third_options.gate = &gate;
  CreditorNode third(third_options);
  world.debtor.Borrow(third, 3, kUnits, 30);
  world.gate.Set(true);
  gate.Set(true);
  Layer layer = TwoParts(1, *world.random);
  layer.Add(3, kUnits, 30, kUnits, 1, kQFloats, *world.random);
  layer.Exchange(*world.debtor.links);
  EXPECT_TRUE(layer.IsRight(0));
  EXPECT_EQ(layer.parts[1].status.message(), "no answer from creditor bad within 200ms");
  EXPECT_EQ(layer.parts[2].status.message(), "no answer from creditor third within 100ms");
  world.gate.Set(false);
  gate.Set(false);
}

TEST(CreditorLinksTest, ACreditorThatIsLateForLongHasLostTheLoansThatWereAskedAbout) {
  DebtorNode::Options options;
  options.patience = absl::Milliseconds(50);
  options.answer_time_max = absl::Milliseconds(500);
  options.lease_time = absl::Seconds(60);
  TwoCreditors world(options);
  world.debtor.Borrow(*world.bad, 4, kUnits, 40);
  world.gate.Set(true);
  Layer late = TwoParts(1, *world.random);
  late.Exchange(*world.debtor.links);
  const absl::Time began = absl::Now();
  const auto lost = AwaitAtDebtor<LoanLost>(world.debtor);
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(400));
  EXPECT_EQ(lost.loan, LoanId(2));
  EXPECT_EQ(lost.why.message(), "creditor bad gave no answer within 500ms");
  EXPECT_TRUE(world.debtor.links->Progress().empty()) << "nothing was asked about loan 4";
  EXPECT_FALSE(world.debtor.links->awaits_answers());
  Layer layer(0);
  layer.Add(4, kUnits, 40, kUnits, 1, kQFloats, *world.random);
  layer.Exchange(*world.debtor.links);
  EXPECT_EQ(layer.parts[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(world.debtor).loan, LoanId(4));
  world.gate.Set(false);
  EXPECT_EQ(AwaitAtDebtor<CreditorAnswers>(world.debtor).creditor.node, NodeId("bad"));
  // It is told that they are not used any more, and keeps no block until the lease ends.
  EXPECT_EQ(world.bad->Await<LoanReturned>().key.loan, LoanId(2));
  EXPECT_EQ(world.bad->Await<LoanReturned>().key.loan, LoanId(4));
  world.debtor.links->Handle(ReturnLoan{LoanId(2)});
  EXPECT_TRUE(world.debtor.links->Progress().empty());
}

// While it opens, a link is a creditor that is late.
TEST(CreditorLinksTest, ALinkThatOpensTooSlowlyIsLateAndThenUsable) {
  const auto random = NewSeededRandom(15);
  CreditorNode creditor({});
  DebtorNode::Options options;
  options.patience = absl::ZeroDuration();
  options.answer_time_max = options.lease_time = absl::Seconds(60);
  DebtorNode debtor(options);
  debtor.Borrow(creditor, 1, kUnits, 10);
  Layer layer(0);
  layer.Add(1, kUnits, 10, kUnits, 1, kQFloats, *random);
  layer.Exchange(*debtor.links);
  EXPECT_EQ(layer.parts[0].status.message(), "no link to creditor creditor within 0");
  EXPECT_EQ(AwaitAtDebtor<CreditorAnswers>(debtor).creditor.node, NodeId("creditor"));
}

TEST(CreditorLinksTest, ALoanThatIsReturnedWhileItsCreditorIsLateIsForgotten) {
  DebtorNode::Options options;
  options.patience = absl::Milliseconds(50);
  options.answer_time_max = options.lease_time = absl::Seconds(60);
  TwoCreditors world(options);
  world.gate.Set(true);
  Layer late = TwoParts(1, *world.random);
  late.Exchange(*world.debtor.links);
  world.debtor.links->Handle(ReturnLoan{.loan = LoanId(2)});
  world.gate.Set(false);
  world.bad->Await<LoanReturned>();
  EXPECT_EQ(AwaitAtDebtor<CreditorAnswers>(world.debtor).creditor.node, NodeId("bad"));
  EXPECT_TRUE(world.debtor.links->Progress().empty());
  EXPECT_FALSE(world.debtor.links->awaits_answers());
}

TEST(CreditorLinksTest, ACreditorThatOwesAnAnswerForTheLeaseTimeHasLostItsLoans) {
  DebtorNode::Options options;
  options.patience = absl::Milliseconds(500);
  options.answer_time_max = absl::Seconds(60);
  options.lease_time = absl::Seconds(1);
  TwoCreditors world(options);
  world.gate.Set(true);
  Layer late = TwoParts(1, *world.random);
  late.Exchange(*world.debtor.links);
  const auto lost = AwaitAtDebtor<LoanLost>(world.debtor);
  EXPECT_EQ(lost.loan, LoanId(2));
  EXPECT_EQ(lost.why.code(), absl::StatusCode::kDeadlineExceeded);
  Layer layer = TwoParts(0, *world.random);
  layer.Exchange(*world.debtor.links);
  EXPECT_TRUE(layer.IsRight(0));
  EXPECT_FALSE(layer.parts[1].status.ok());
  EXPECT_TRUE(world.debtor.links->Progress().empty()) << "a loan is lost once";
  world.gate.Set(false);
}

TEST(CreditorLinksTest, ACreditorThatEndsLosesItsLoansAndItsSuccessorGetsALinkOfItsOwn) {
  TwoCreditors world({});
  world.bad.reset();
  Layer layer = TwoParts(1, *world.random);
  layer.Exchange(*world.debtor.links);
  EXPECT_TRUE(layer.IsRight(0));
  EXPECT_EQ(layer.parts[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(world.debtor).loan, LoanId(2));
  world.debtor.links->Handle(ReturnLoan{.loan = LoanId(2)});
  CreditorNode::Options options;
  options.name = "bad";
  CreditorNode successor(options);
  world.debtor.Borrow(successor, 3, kUnits, 30);
  Layer again(2);
  again.Add(1, kUnits, 10, kUnits, 1, kQFloats, *world.random);
  again.Add(3, kUnits, 30, kUnits, 1, kQFloats, *world.random);
  again.Exchange(*world.debtor.links);
  EXPECT_TRUE(again.IsAllRight());
}

// A creditor in a process of its own, whose attention never returns; it writes its address, and a
// byte when a question has arrived.
class HungProcess {
 public:
  explicit HungProcess(const std::string& tcp_host) {
    int ends[2];
    TANDEM_CHECK(::pipe(ends) == 0);
    pid_ = ::fork();
    TANDEM_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      Gate gate;
      gate.Set(true);
      CreditorNode::Options options;
      options.name = "bad";
      options.tcp_host = tcp_host;
      options.gate = &gate;
      CreditorNode node(options);
      const DebtorId debtor = {.node = NodeId("debtor"), .incarnation = Incarnation(1)};
      node.service->Handle(ServeLoan{.key = {.debtor = debtor, .loan = LoanId(2)},
                                     .units = kUnits,
                                     .blocks = BlocksFrom(20, size_t{2} * kUnitBlocks)});
      const std::string line = node.service->address() + "\n";
      TANDEM_CHECK(::write(ends[1], line.data(), line.size()) == static_cast<ssize_t>(line.size()));
      gate.AwaitArrivals(1);
      TANDEM_CHECK(::write(ends[1], "!", 1) == 1);
      ::pause();
      ::_exit(0);
    }
    ::close(ends[1]);
    out_ = ends[0];
    for (char c = 0; ::read(out_, &c, 1) == 1 && c != '\n';) address_.push_back(c);
  }
  ~HungProcess() {
    ::close(out_);
    if (pid_ > 0) End();
  }
  CreditorAddress address() const {
    return {.node = NodeId("bad"),
            .incarnation = Incarnation(7),
            .host = "host",
            .lending_address = address_};
  }
  // When the question has arrived.
  void Kill() {
    char c = 0;
    EXPECT_EQ(::read(out_, &c, 1), 1);
    End();
  }

 private:
  void End() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  pid_t pid_ = -1;
  int out_ = -1;
  std::string address_;
};

TEST(CreditorLinksTest, AProcessKilledDuringCollectFailsItsPartsAtOnce) {
  for (const std::string host : {"host", "elsewhere"}) {
    HungProcess bad("127.0.0.1");
    CreditorNode::Options good_options;
    good_options.name = "good";
    CreditorNode good(good_options);
    const auto random = NewSeededRandom(12);
    DebtorNode::Options options;
    options.host = host;
    options.answer_time_max = absl::Seconds(60);
    DebtorNode debtor(options);
    debtor.Borrow(good, 1, kUnits, 10);
    debtor.links->Handle(UseLoan{.loan = LoanId(2), .creditor = bad.address()});
    Layer layer = TwoParts(0, *random);
    std::thread killer([&] { bad.Kill(); });
    const absl::Time began = absl::Now();
    layer.Exchange(*debtor.links);
    killer.join();
    EXPECT_LT(absl::Now() - began, absl::Seconds(30));
    EXPECT_TRUE(layer.IsRight(0)) << layer.parts[0].status;
    EXPECT_EQ(layer.parts[1].status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(AwaitAtDebtor<LoanLost>(debtor).loan, LoanId(2));
  }
}

TEST(CreditorLinksTest, ASlowCreditorDelaysOnlyAndALongPromptIsCutIntoManyQuestions) {
  const auto random = NewSeededRandom(13);
  CreditorNode::Options options;
  options.compute_share = 0.05;
  CreditorNode creditor(options);
  DebtorNode debtor({});
  const engine::UnitSpan units = {.first = 0, .end = 64};
  debtor.Borrow(creditor, 1, units, 10);
  Layer layer(0);
  layer.Add(1, units, 10, units, 4000, kQFloats, *random);
  layer.Exchange(*debtor.links);
  EXPECT_TRUE(layer.IsAllRight());
  EXPECT_GT(debtor.links->counters().questions, 3);
  EXPECT_EQ(debtor.links->counters().failures, 0);
}

// Each end has a clock of its own here: what the creditor says it computed is taken away.
TEST(CreditorLinksTest, ARoundTripLeavesTheCreditorsComputingOut) {
  const auto random = NewSeededRandom(14);
  ManualClock debtor_clock, creditor_clock;
  Gate gate;
  DebtorNode::Options debtor_options;
  debtor_options.clock = &debtor_clock;
  DebtorNode debtor(debtor_options);
  CreditorNode::Options options;
  options.clock = &creditor_clock;
  options.gate = &gate;
  CreditorNode creditor(options);
  debtor.Borrow(creditor, 1, kUnits, 10);
  int questions = 0;
  const auto exchange = [&](absl::Duration elapsed, absl::Duration computed) {
    gate.Set(true);
    std::thread others([&] {
      gate.AwaitArrivals(++questions);
      // The debtor has noted when it sent the question, and waits for the answer.
      debtor_clock.AwaitReads(2);
      debtor_clock.Advance(elapsed);
      creditor_clock.Advance(computed);
      gate.Set(false);
    });
    Layer layer(0);
    layer.Add(1, kUnits, 10, kUnits, 1, kQFloats, *random);
    layer.Exchange(*debtor.links);
    others.join();
    EXPECT_TRUE(layer.IsAllRight());
  };
  const auto least = [&] {
    const auto taken = debtor.links->TakeRoundTrips();
    return taken.size() == 1 ? taken[0].least : -absl::InfiniteDuration();
  };
  EXPECT_TRUE(debtor.links->TakeRoundTrips().empty());
  exchange(absl::Microseconds(1000), absl::Microseconds(300));
  exchange(absl::Microseconds(345), absl::Microseconds(300));
  exchange(absl::Microseconds(500), absl::Microseconds(300));
  const auto taken = debtor.links->TakeRoundTrips();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].creditor.node, NodeId("creditor"));
  EXPECT_EQ(taken[0].creditor.incarnation, Incarnation(7));
  EXPECT_EQ(taken[0].least, absl::Microseconds(45)) << "the quickest one";
  EXPECT_TRUE(debtor.links->TakeRoundTrips().empty()) << "no question since";
  exchange(absl::Microseconds(600), absl::Microseconds(300));
  EXPECT_EQ(least(), absl::Microseconds(300)) << "earlier ones are taken already";
  exchange(absl::Microseconds(100), absl::Microseconds(300));
  EXPECT_EQ(least(), absl::Microseconds(1)) << "a creditor that says too much";
  EXPECT_EQ(debtor.links->counters().round_trips, absl::Microseconds(2545));
}

TEST(CreditorLinksTest, PartsThatCannotBeAskedFailAloneAndAtOnce) {
  TwoCreditors world({});
  Layer layer = TwoParts(0, *world.random);
  layer.Add(9, kUnits, 10, kUnits, 1, kQFloats, *world.random);  // no such loan
  layer.Add(1, kUnits, 10, kUnits, 1, kQFloats, *world.random);
  layer.parts[3].answer = layer.parts[3].answer.first(1);  // not a multiple of its pieces
  layer.Exchange(*world.debtor.links);
  EXPECT_TRUE(layer.IsRight(0) && layer.IsRight(1));
  EXPECT_EQ(layer.parts[2].status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(layer.parts[3].status.code(), absl::StatusCode::kInvalidArgument);
  // What the creditor's engine refuses: a layer that it does not have. The loan is of no use then.
  Layer wrong = TwoParts(0, *world.random);
  wrong.parts[1].layer = kNumLayers;
  wrong.Exchange(*world.debtor.links);
  EXPECT_TRUE(wrong.IsRight(0));
  EXPECT_EQ(wrong.parts[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AwaitAtDebtor<LoanLost>(world.debtor).loan, LoanId(2));
}

TEST(CreditorLinksTest, AnAddressThatIsNoneOrThatNobodyHasLosesTheLoan) {
  DebtorNode debtor({});
  const std::string addresses[] = {"",
                                   "nonsense",
                                   "unix:tandem-lending-nobody",
                                   "unix:x tcp:1",
                                   "unix:x tcp:localhost:80",
                                   "unix:" + std::string(300, 'x')};
  uint64_t loan = 0;
  for (const std::string& address : addresses) {
    debtor.links->Handle(UseLoan{.loan = LoanId(++loan),
                                 .creditor = {.node = NodeId("nobody"),
                                              .incarnation = Incarnation(loan),
                                              .host = "host",
                                              .lending_address = address}});
    EXPECT_EQ(AwaitAtDebtor<LoanLost>(debtor).loan, LoanId(loan)) << address;
  }
}

TEST(CreditorLinksTest, ALinkWithoutLoansIsClosedAfterTheLeaseTime) {
  ManualClock clock;
  DebtorNode::Options options;
  options.clock = &clock;
  DebtorNode debtor(options);
  CreditorNode creditor({});
  debtor.Borrow(creditor, 1, kUnits, 10);
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (debtor.links->counters().creditors == 0 && absl::Now() < give_up) debtor.links->Progress();
  debtor.links->Handle(ReturnLoan{.loan = LoanId(1)});
  creditor.Await<LoanReturned>();
  while (creditor.service->counters().debtors > 0 && absl::Now() < give_up) {
    clock.Advance(absl::Seconds(1));  // the last answer counts, and may come late
    EXPECT_TRUE(debtor.links->Progress().empty());
  }
  EXPECT_EQ(creditor.service->counters().debtors, 0);
  EXPECT_EQ(debtor.links->counters().creditors, 0);
}

}  // namespace
}  // namespace tandem::lending
