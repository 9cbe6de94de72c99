// Goal: of creditors that hold equally much, the one over whose link a loan will cost least is
// asked first, as its debtor has measured rate and round trip; links without a measurement count as
// the fleet's usual ones do, the host's own first; noise does not decide, and then free memory and
// load do. What a node reports of its links is checked, and forgotten when either end leaves.
#include <limits>

#include "common/cost/price_age.h"
#include "common/rpc/convert.h"
#include "common/rpc/cost_convert.h"
#include "router/fleet/loan_price.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;

constexpr int kLendable = 40, kLayers = 10;
constexpr double kGigabyte = 1e9;

class CreditorLinksTest : public ::testing::Test {
 protected:
  static v1::Registration Lends(uint64_t number, const std::string& host) {
    v1::Registration registration =
        TestRegistration(absl::StrCat("d", number), v1::NODE_ROLE_DECODE);
    registration.set_host(host);
    registration.set_lending_address("unix:here tcp:here");
    registration.set_lend_blocks_max(kLendable);
    registration.set_lending_unit_tokens(256);
    registration.set_kv_bytes_per_block(1 << 20);
    return registration;
  }
  // Node 1 is the debtor, on host "a"; the others are on these.
  void Join(const std::vector<std::string>& hosts) {
    ASSERT_OK(harness_.Join(1, Lends(1, "a")));
    for (const std::string& host : hosts) {
      ++last_;
      ASSERT_OK(harness_.Join(last_, Lends(last_, host)));
    }
  }
  static v1::CreditorLink Link(uint64_t creditor, double bytes_per_second, double round_trip_us) {
    v1::CreditorLink link = rpc::ToWire(
        cost::CreditorProfile{.blocks = {.bytes_per_second = bytes_per_second, .samples = 9},
                              .round_trip_us = round_trip_us,
                              .layers = kLayers});
    link.set_creditor_node_id(absl::StrCat("d", creditor));
    link.set_creditor_incarnation(Lends(creditor, "").incarnation());
    return link;
  }
  void Report(const std::vector<v1::CreditorLink>& links) {
    v1::NodeMessage message;
    for (const v1::CreditorLink& link : links) *message.add_creditor_links() = link;
    harness_.SayMessage(1, message);
  }
  void Load(uint64_t node, int free, int running = 0) {
    v1::NodeMessage message;
    v1::NodeLoad& load = *message.mutable_load();
    load.set_blocks_total(100);
    load.set_blocks_free(free);
    load.set_blocks_used(100 - free);
    load.set_sequences_running(running);
    harness_.SayMessage(node, message);
  }
  // The nodes in the order in which they are asked for a loan that none takes on.
  std::vector<uint64_t> Asked() {
    v1::NodeEvent event;
    v1::LoanWanted& wanted = *event.mutable_loan_wanted();
    wanted.set_loan(++loan_);
    wanted.set_units(1);
    kv::BlockHasher hasher{kv::BlockKey()};
    wanted.set_hashes(
        kv::PackHashes(hasher.Blocks(hasher.Salt("m", "n", ""), Tokens(16 * 16), 16)));
    harness_.Say(1, {event});
    std::vector<uint64_t> asked;
    for (bool more = true; more;) {
      more = false;
      for (uint64_t node = 2; node <= last_; ++node) {
        if (harness_.Quiet(node)) continue;
        EXPECT_TRUE(harness_.Next(node).has_lend_blocks());
        asked.push_back(node);
        more = true;
        v1::NodeEvent refused;
        v1::LoanOffered& offered = *refused.mutable_loan_offered();
        offered.set_debtor_node_id("d1");
        offered.set_debtor_incarnation(Lends(1, "").incarnation());
        offered.set_loan(loan_);
        *offered.mutable_status() = rpc::ToWire(absl::ResourceExhaustedError("full"));
        harness_.Say(node, {refused});
        break;
      }
    }
    EXPECT_TRUE(harness_.Next(1).has_loan_answer());
    return asked;
  }
  const Node* Find(uint64_t node) { return harness_.core().fleet().Find(NodeKey(node)); }

  CoreHarness harness_;
  uint64_t last_ = 1, loan_ = 0;
};

TEST_F(CreditorLinksTest, AFastLinkComesBeforeASlowOne) {
  Join({"b", "c"});
  Report({Link(2, kGigabyte / 20, 20), Link(3, kGigabyte, 20)});
  EXPECT_THAT(Asked(), ElementsAre(3, 2));
  Report({Link(2, kGigabyte, 20), Link(3, kGigabyte / 20, 20)});
  EXPECT_THAT(Asked(), ElementsAre(2, 3));
}

TEST_F(CreditorLinksTest, AShortRoundTripComesBeforeALongOne) {
  Join({"b", "c"});
  Report({Link(2, kGigabyte, 90), Link(3, kGigabyte, 30)});
  EXPECT_THAT(Asked(), ElementsAre(3, 2));
  // Each token asks: a slower link with quick answers costs less in the end.
  Report({Link(2, 2 * kGigabyte, 90), Link(3, kGigabyte, 30)});
  EXPECT_THAT(Asked(), ElementsAre(3, 2));
}

// d2 has more free memory, and d3 a link that costs 3 % less; then 25 % less and more.
TEST_F(CreditorLinksTest, NoiseDoesNotDecideBetweenLinks) {
  Join({"b", "c", "d"});
  Load(3, 60);
  Load(4, 80);
  for (const double noise : {0.97, 1.0, 1.03}) {
    Report({Link(2, kGigabyte, 30), Link(3, kGigabyte * noise, 30 / noise),
            Link(4, kGigabyte / noise, 30 * noise)});
    EXPECT_THAT(Asked(), ElementsAre(2, 4, 3)) << noise;
  }
  Report({Link(2, kGigabyte, 30), Link(3, 2 * kGigabyte, 15), Link(4, kGigabyte, 30)});
  EXPECT_THAT(Asked(), ElementsAre(3, 2, 4));
  Report({Link(2, kGigabyte, 30), Link(3, kGigabyte, 31), Link(4, kGigabyte / 50, 300)});
  EXPECT_THAT(Asked(), ElementsAre(2, 3, 4)) << "each once, the dear one last";
}

TEST_F(CreditorLinksTest, FreeMemoryThenLoadDecideBetweenEqualLinks) {
  Join({"b", "c", "d"});
  Load(2, 80, /*running=*/3);
  Load(3, 78, /*running=*/1);
  Load(4, 60);
  EXPECT_THAT(Asked(), ElementsAre(3, 2, 4)) << "80 and 78 of 100 are both 6 eighths";
  Load(2, 80, /*running=*/1);
  EXPECT_THAT(Asked(), ElementsAre(2, 3, 4)) << "equally busy: the freer one";
}

TEST_F(CreditorLinksTest, WithoutAMeasurementTheHostsOwnNodesComeFirst) {
  Join({"b", "a", "c"});
  Load(3, 60);
  EXPECT_EQ(Asked().front(), 3u) << "though its pool is fuller";
  // A link that is measured at half of what a host's own is taken to cost.
  const Fleet& fleet = harness_.core().fleet();
  const double of_host = fleet.UsualAskUs(/*same_host=*/true) / kLayers;
  Report({Link(2, 100 * kGigabyte, of_host / 2)});
  EXPECT_THAT(Asked(), ElementsAre(2, 3, 4));
  // And one that is dear comes last.
  Report({Link(2, kGigabyte / 100, of_host * 100)});
  EXPECT_THAT(Asked(), ElementsAre(3, 4, 2));
}

// What the fleet's links are found to cost is what the next one is taken to cost.
TEST_F(CreditorLinksTest, ReportsTeachWhatALinkUsuallyCosts) {
  Join({"b", "a"});
  const Fleet& fleet = harness_.core().fleet();
  const double before = fleet.UsualAskUs(false);
  for (int i = 0; i < 300; ++i) Report({Link(2, kGigabyte, 70 + i % 3)});
  EXPECT_NEAR(fleet.UsualAskUs(false), 71 * kLayers, 2 * kLayers);
  EXPECT_NE(fleet.UsualAskUs(false), before);
  EXPECT_LE(fleet.UsualAskUs(true), fleet.UsualAskUs(false) / 2);
  const double usual = fleet.UsualAskUs(false);
  Report({Link(2, kGigabyte, 1e300)});
  EXPECT_LT(fleet.UsualAskUs(false), 1.2 * usual) << "one report moves it by a little";
}

TEST_F(CreditorLinksTest, APriceThatIsNotMeasuredAgainFades) {
  Join({"b", "c"});
  Report({Link(2, kGigabyte / 1000, 1e6)});
  EXPECT_THAT(Asked(), ElementsAre(3, 2));
  const Node* const debtor = Find(1);
  const auto price = [&](uint64_t node) {
    return LoanPrice(harness_.core().fleet(), *debtor, 256).Us(*Find(node), 256);
  };
  EXPECT_GT(price(2), 10 * price(3));
  for (absl::Duration time; time < cost::kPriceTrusted + 30 * cost::kPriceHalfLife;
       time += absl::Seconds(1)) {
    harness_.Advance(absl::Seconds(1));
    for (uint64_t node = 1; node <= last_; ++node) harness_.SayMessage(node, {});
  }
  EXPECT_NEAR(price(2), price(3), 0.01 * price(3)) << "it is tried again";
}

// The debtor has to send what is not held; one that sends nothing pays for the questions only.
TEST_F(CreditorLinksTest, APriceCountsWhatIsSentAndEachTokensQuestions) {
  Join({"b"});
  Report({Link(2, kGigabyte, 30)});
  const Node& debtor = *Find(1);
  const LoanPrice price(harness_.core().fleet(), debtor, 512);
  const double asked = 512 * kLayers * 30;
  EXPECT_DOUBLE_EQ(price.Us(*Find(2), 0), asked);
  EXPECT_NEAR(price.Us(*Find(2), 512), asked + 512 * debtor.kv_bytes_per_token / 1e3, 1e-6 * asked);
}

TEST_F(CreditorLinksTest, FiguresThatCannotBeEndTheStream) {
  const double odd[] = {-1, std::numeric_limits<double>::quiet_NaN(),
                        std::numeric_limits<double>::infinity()};
  const auto refuses = [](const std::function<void(v1::CreditorLink&)>& change) {
    CoreHarness harness;
    EXPECT_OK(harness.Join(1, Lends(1, "a")));
    EXPECT_OK(harness.Join(2, Lends(2, "b")));
    v1::NodeMessage message;
    v1::CreditorLink& link = *message.add_creditor_links() = Link(2, kGigabyte, 30);
    change(link);
    harness.SayMessage(1, message);
    return harness.core().fleet().Find(NodeKey(1)) == nullptr;
  };
  EXPECT_FALSE(refuses([](v1::CreditorLink&) {}));
  for (const double figure : odd) {
    EXPECT_TRUE(refuses([&](v1::CreditorLink& link) { link.set_round_trip_us(figure); })) << figure;
    EXPECT_TRUE(refuses([&](v1::CreditorLink& link) {
      link.mutable_blocks()->set_bytes_per_second(figure);
    })) << figure;
    EXPECT_TRUE(refuses([&](v1::CreditorLink& link) {
      link.mutable_blocks()->set_fixed_us(figure);
    })) << figure;
  }
  EXPECT_TRUE(refuses([](v1::CreditorLink& link) { link.set_layers(-1); }));
  EXPECT_TRUE(refuses(
      [](v1::CreditorLink& link) { link.set_layers(cost::CreditorProfile::kLayersMax + 1); }));
}

// Figures that can be, and predict nonsense, leave every price finite.
TEST_F(CreditorLinksTest, PricesStayFinite) {
  Join({"b"});
  for (const double rate : {0.0, 1e-300, 1e300}) {
    for (const double round_trip : {0.0, 1e-300, 1e300}) {
      Report({Link(2, rate, round_trip)});
      for (const int64_t tokens : {int64_t{1}, int64_t{1} << 40}) {
        const double us = LoanPrice(harness_.core().fleet(), *Find(1), tokens).Us(*Find(2), tokens);
        EXPECT_TRUE(us >= 0 && us <= 3.6e9) << us;
      }
      EXPECT_THAT(Asked(), ElementsAre(2));
    }
  }
}

TEST_F(CreditorLinksTest, NodesThatAreNotCreditorsAreIgnoredAndTheRestIsBounded) {
  Join(std::vector<std::string>(Fleet::kDebtsMax + 10, "b"));
  v1::CreditorLink older = Link(2, kGigabyte, 30);
  older.set_creditor_incarnation(older.creditor_incarnation() - 1);
  Report({Link(1, kGigabyte, 30), Link(999, kGigabyte, 30), older});
  EXPECT_TRUE(Find(1)->creditor_links.empty()) << "itself, a stranger, an earlier incarnation";
  std::vector<v1::CreditorLink> links;
  for (uint64_t node = 2; node <= last_; ++node) links.push_back(Link(node, kGigabyte, 30));
  Report(links);
  EXPECT_EQ(std::ssize(Find(1)->creditor_links), Fleet::kDebtsMax);
  EXPECT_FALSE(Find(1)->creditor_links.contains(Find(last_)->slot)) << "beyond the bound";
  // Later ones take the places of those that were not reported again.
  harness_.Advance(absl::Milliseconds(10));
  Report({links.front()});
  harness_.Advance(absl::Milliseconds(10));
  Report({links.back()});
  EXPECT_EQ(std::ssize(Find(1)->creditor_links), Fleet::kDebtsMax);
  EXPECT_TRUE(Find(1)->creditor_links.contains(Find(last_)->slot));
  EXPECT_TRUE(Find(1)->creditor_links.contains(Find(2)->slot));
}

TEST_F(CreditorLinksTest, ALinkIsForgottenWithEitherEnd) {
  Join({"b", "c"});
  const auto measure = [&] { Report({Link(2, kGigabyte, 300), Link(3, kGigabyte, 30)}); };
  measure();
  v1::GetStatusResponse status;
  harness_.core().fleet().FillStatus(harness_.now(), status);
  EXPECT_EQ(status.nodes(0).creditor_links_size(), 2);
  EXPECT_EQ(status.nodes(0).creditor_links(0).creditor_node_id(), "d2");
  EXPECT_EQ(status.nodes(0).creditor_links(0).round_trip_us(), 300);
  // The creditor leaves, and another node gets its slot.
  const NodeSlot slot = Find(2)->slot;
  harness_.Lose(2);
  EXPECT_EQ(Find(1)->creditor_links.size(), 1u);
  ++last_;
  ASSERT_OK(harness_.Join(last_, Lends(last_, "b")));
  ASSERT_EQ(Find(last_)->slot, slot);
  EXPECT_FALSE(Find(1)->creditor_links.contains(slot));
  // A new incarnation of a creditor.
  v1::Registration next = Lends(3, "c");
  next.set_incarnation(next.incarnation() + 1);
  ASSERT_OK(harness_.Join(++last_, next));
  EXPECT_TRUE(Find(1)->creditor_links.empty());
  measure();
  EXPECT_TRUE(Find(1)->creditor_links.empty()) << "figures of the one before";
  // A new incarnation of the debtor.
  v1::CreditorLink link = Link(3, kGigabyte, 30);
  link.set_creditor_incarnation(next.incarnation());
  Report({link});
  EXPECT_EQ(Find(1)->creditor_links.size(), 1u);
  v1::Registration debtor = Lends(1, "a");
  debtor.set_incarnation(debtor.incarnation() + 1);
  ASSERT_OK(harness_.Join(++last_, debtor));
  EXPECT_TRUE(Find(last_)->creditor_links.empty());
}

}  // namespace
}  // namespace tandem::router
