// Goal: a loan is kept while its link opens, however late steps find that, and one that no step
// asks about hears of a recall well within its notice.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "common/lending/creditor_links.h"
#include "common/lending/link_dialer.h"
#include "common/lending/link_listener.h"
#include "tests/unit/lending/lending_world.h"

namespace tandem::lending {
namespace {

constexpr engine::UnitSpan kUnits = {.first = 0, .end = 2};

// The creditor's listener, which goes on with handshakes only when it is told to.
TEST(QuietLoans, ALinkThatOpensAfterTheTimeOfAnAnswerLosesNothing) {
  const auto random = NewSeededRandom(16);
  for (const bool opens : {true, false}) {
    const DebtorId self{.node = NodeId("slow"), .incarnation = Incarnation(7)};
    auto listener = LinkListener::Start(
        {.self = self, .fleet_secret = "secret", .tcp_host = opens ? "" : "127.0.0.1"});
    ASSERT_TRUE(listener.ok()) << listener.status();
    ManualClock clock;
    DebtorNode::Options options;
    options.clock = &clock;
    options.patience = absl::ZeroDuration();
    options.answer_time_max = absl::Seconds(1);
    options.host = opens ? "host" : "elsewhere";
    DebtorNode debtor(options);
    debtor.links->Handle(UseLoan{.loan = LoanId(1),
                                 .creditor = {.node = self.node,
                                              .incarnation = self.incarnation,
                                              .host = "host",
                                              .lending_address = (*listener)->address()}});
    Layer layer(0);
    layer.Add(1, kUnits, 10, kUnits, 1, kQFloats, *random);
    layer.Exchange(*debtor.links);
    EXPECT_EQ(layer.parts[0].status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(AwaitAtDebtor<CreditorLate>(debtor).creditor.node, self.node);
    clock.Advance(LinkDialer::kDialTime - absl::Milliseconds(1));
    EXPECT_TRUE(debtor.links->Progress().empty()) << "the link may still open";
    if (!opens) {
      clock.Advance(absl::Milliseconds(1));
      EXPECT_EQ(AwaitAtDebtor<LoanLost>(debtor).loan, LoanId(1));
      continue;
    }
    std::vector<LinkListener::NewLink> made;
    std::vector<LendingEvent> events;
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (events.empty() && absl::Now() < give_up) {
      for (auto& link : (*listener)->Progress(clock.Now())) made.push_back(std::move(link));
      events = debtor.links->Progress();
    }
    ASSERT_EQ(events.size(), 1u);
    EXPECT_TRUE(std::holds_alternative<CreditorAnswers>(events[0]));
  }
}

// A sequence may sit out steps: only renewals tell it of a recall then. Its creditor keeps the loan
// for a second after it.
TEST(QuietLoans, ALoanThatNothingAsksAboutHearsOfARecallWithinHalfOfItsNotice) {
  ManualClock clock;
  DebtorNode::Options options;
  options.clock = &clock;
  DebtorNode debtor(options);
  CreditorNode creditor({});
  debtor.Borrow(creditor, 1, kUnits, 10);
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (debtor.links->counters().creditors == 0 && absl::Now() < give_up) debtor.links->Progress();
  creditor.service->Handle(RecallLoan{.key = debtor.key(1)});
  clock.Advance(absl::Milliseconds(500));
  EXPECT_EQ(AwaitAtDebtor<LoanRecalled>(debtor).loan, LoanId(1));
}

}  // namespace
}  // namespace tandem::lending
