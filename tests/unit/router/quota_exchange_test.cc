// Goal: a tenant behind several routers gets its quota once, whichever of them it uses, changes to
// or returns to, in bursts as well as over time; routers that start again, or are gone, change
// nothing of that; and reports that no router would send do no harm.
#include "router/front_end/quota_exchange.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kTick = absl::Milliseconds(50);
// From a router over a node to the other routers.
constexpr absl::Duration kDelay = absl::Milliseconds(300);
constexpr absl::Duration kLateMax = absl::Milliseconds(500);

// Routers with one tenant, in virtual time. Each reports every second, at a moment of its own.
class Routers {
 public:
  Routers(int count, const TenantLimits& limits) : limits_(limits) {
    for (int i = 0; i < count; ++i) Add();
  }
  int Add() {
    auto router = std::make_unique<Router>(incarnation_ += 7);
    router->tenants = {std::make_shared<Tenant>("alice")};
    router->tenants[0]->SetLimits(limits_);
    router->report_at = now_ + absl::Milliseconds(130) * static_cast<int>(routers_.size());
    routers_.push_back(std::move(router));
    return static_cast<int>(routers_.size()) - 1;
  }
  void Remove(int router) { routers_[router]->gone = true; }
  void Partition(bool partitioned) { partitioned_ = partitioned; }
  // From now on reports are late by up to kLateMax, and one of two nodes may lose one; both may if
  // `lose_whole`.
  void Randomize(std::mt19937_64* random, bool lose_whole) {
    random_ = random;
    lose_whole_ = lose_whole;
  }
  // The most reports of a router in a row that no other router has heard.
  int lost_in_row_max() const { return lost_in_row_max_; }

  void Tick() {
    now_ += kTick;
    for (auto& router : routers_) {
      if (router->gone || now_ < router->report_at) continue;
      router->report_at += QuotaExchange::kInterval;
      v1::RouterReport report = router->exchange.Report(router->tenants, now_);
      // Several nodes carry it.
      const bool lost = lose_whole_ && (*random_)() % 8 == 0;
      router->lost_in_row = lost ? router->lost_in_row + 1 : 0;
      lost_in_row_max_ = std::max(lost_in_row_max_, router->lost_in_row);
      if (lost) continue;
      const bool one_loses_it = random_ != nullptr && (*random_)() % 4 == 0;
      for (int i = one_loses_it ? 1 : 0; i < 2; ++i)
        under_way_.emplace(now_ + Delay() + i * kTick, report);
    }
    while (!under_way_.empty() && under_way_.begin()->first <= now_) {
      for (auto& router : routers_)
        if (!router->gone && !partitioned_)
          router->exchange.OnReport(under_way_.begin()->second, router->tenants, now_);
      under_way_.erase(under_way_.begin());
    }
  }
  // Ticks for `duration` and calls `ask(router, tenant)` for each router at each.
  template <typename Ask>
  void Run(absl::Duration duration, Ask ask) {
    const absl::Time end = now_ + duration;
    while (now_ < end) {
      Tick();
      for (size_t i = 0; i < routers_.size(); ++i)
        if (!routers_[i]->gone) ask(static_cast<int>(i), *routers_[i]->tenants[0]);
    }
  }
  absl::Time now() const { return now_; }
  QuotaExchange& exchange(int router) { return routers_[router]->exchange; }
  Tenant& tenant(int router) { return *routers_[router]->tenants[0]; }

 private:
  struct Router {
    explicit Router(uint64_t incarnation) : exchange(incarnation) {}
    QuotaExchange exchange;
    QuotaExchange::Tenants tenants;
    absl::Time report_at;
    int lost_in_row = 0;  // of its reports, just now
    bool gone = false;
  };
  absl::Duration Delay() {
    if (random_ == nullptr) return kDelay;
    return kTick * static_cast<int64_t>((*random_)() % (kLateMax / kTick));
  }

  const TenantLimits limits_;
  absl::Time now_ = kStart;
  uint64_t incarnation_ = 100;
  bool partitioned_ = false;
  std::vector<std::unique_ptr<Router>> routers_;
  std::multimap<absl::Time, v1::RouterReport> under_way_;  // by when they arrive
  std::mt19937_64* random_ = nullptr;
  bool lose_whole_ = false;
  int lost_in_row_max_ = 0;
};

// The requests that are taken in ten minutes from routers that `uses` names, by the minute.
template <typename Uses>
int64_t RequestsTaken(int count, int64_t per_minute, absl::Duration duration, Uses uses) {
  Routers routers(count, {.requests_per_minute = per_minute});
  int64_t taken = 0;
  routers.Run(duration, [&](int router, Tenant& tenant) {
    if (!uses(router, routers.now() - kStart)) return;
    for (int i = 0; i < 20; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
  });
  return taken;
}

class QuotaOverRouters : public ::testing::TestWithParam<int> {};

TEST_P(QuotaOverRouters, IsGivenOutOnceWhicheverRoutersAreUsed) {
  const int count = GetParam();
  constexpr int64_t kPerMinute = 600;
  constexpr absl::Duration kLong = absl::Minutes(10);
  // A minute's amount at once, then the rate.
  const auto near = [](int64_t taken) {
    EXPECT_NEAR(static_cast<double>(taken), 11.0 * kPerMinute, 0.03 * 11 * kPerMinute);
  };
  near(RequestsTaken(count, kPerMinute, kLong, [](int, absl::Duration) { return true; }));
  near(RequestsTaken(count, kPerMinute, kLong,
                     [](int router, absl::Duration) { return router == 0; }));
  // Another one every seven seconds.
  near(RequestsTaken(count, kPerMinute, kLong, [&](int router, absl::Duration since) {
    return router == static_cast<int>(since / absl::Seconds(7)) % count;
  }));
  // Another one at each request.
  int turn = 0;
  near(RequestsTaken(count, kPerMinute, kLong,
                     [&](int router, absl::Duration) { return router == turn++ / 3 % count; }));
}

TEST_P(QuotaOverRouters, HoldsForABurstAtAllOfThem) {
  const int count = GetParam();
  constexpr int64_t kPerMinute = 6000;
  Routers routers(count, {.requests_per_minute = kPerMinute});
  routers.Run(absl::Seconds(10), [](int, Tenant&) {});  // they have heard of each other
  int64_t taken = 0;
  for (int router = 0; router < count; ++router)
    for (int64_t i = 0; i < 2 * kPerMinute; ++i)
      taken += routers.tenant(router).CountRequest(routers.now()).ok() ? 1 : 0;
  EXPECT_LE(taken, kPerMinute);
  EXPECT_GE(taken, 99 * kPerMinute / 100);
  // Nor is there more for a burst that goes on.
  constexpr int kSeconds = 6;
  routers.Run(absl::Seconds(kSeconds), [&](int, Tenant& tenant) {
    for (int i = 0; i < 1000; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
  });
  EXPECT_LE(taken, kPerMinute + kSeconds * kPerMinute / 60 + count);
}

TEST_P(QuotaOverRouters, HoldsForABurstThatBeginsAnywhere) {
  const int count = GetParam();
  constexpr int64_t kPerMinute = 6000;
  for (int moment = 0; moment < 20; ++moment) {
    Routers routers(count, {.requests_per_minute = kPerMinute});
    routers.Run(absl::Seconds(10) + moment * kTick, [](int, Tenant&) {});
    const absl::Time begin = routers.now();
    int64_t taken = 0;
    routers.Run(absl::Seconds(5), [&](int router, Tenant& tenant) {
      // One after the other comes in.
      if (routers.now() - begin < router * absl::Milliseconds(700)) return;
      for (int i = 0; i < 1000; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
    });
    EXPECT_LE(taken, kPerMinute + 5 * kPerMinute / 60 + count) << "moment " << moment;
  }
}

TEST_P(QuotaOverRouters, SmallOnesAreNotLostInDivision) {
  const int count = GetParam();
  for (const int64_t per_minute : {1, 2, 5}) {
    const int64_t taken =
        RequestsTaken(count, per_minute, absl::Minutes(20),
                      [&](int router, absl::Duration) { return router == count - 1; });
    EXPECT_GE(taken, 20 * per_minute) << per_minute << " a minute";
    EXPECT_LE(taken, 21 * per_minute) << per_minute << " a minute";
  }
}

TEST_P(QuotaOverRouters, TokensOfAnswersCountEverywhere) {
  const int count = GetParam();
  constexpr int64_t kPerMinute = 60000, kAnswer = 50;
  Routers routers(count, {.tokens_per_minute = kPerMinute});
  int64_t tokens = 0;
  routers.Run(absl::Minutes(10), [&](int, Tenant& tenant) {
    for (int i = 0; i < 20; ++i) {
      if (!tenant.CountRequest(routers.now()).ok()) return;
      tenant.Charge(2 * kAnswer, routers.now());
      tenant.Charge(-kAnswer, routers.now());  // half was given back
      tokens += kAnswer;
    }
  });
  EXPECT_NEAR(static_cast<double>(tokens), 11.0 * kPerMinute, 0.03 * 11 * kPerMinute);
}

TEST_P(QuotaOverRouters, SequencesAtATimeHoldOverAll) {
  const int count = GetParam();
  constexpr int64_t kMax = 20;
  Routers routers(count, {.sequences_max = kMax});
  routers.Run(absl::Seconds(10), [](int, Tenant&) {});
  // Each router takes what it can, answers last two seconds, and the demand moves about.
  struct Running {
    int router;
    absl::Time until;
  };
  std::vector<Running> running;
  int64_t most = 0, sum = 0, samples = 0;
  routers.Run(absl::Minutes(5), [&](int router, Tenant& tenant) {
    for (size_t i = 0; i < running.size();) {
      if (running[i].until > routers.now()) {
        ++i;
        continue;
      }
      routers.tenant(running[i].router).End(1);
      running.erase(running.begin() + static_cast<int64_t>(i));
    }
    const bool busy =
        router != static_cast<int>((routers.now() - kStart) / absl::Seconds(20)) % count;
    if (!busy) return;
    for (int i = 0; i < 3; ++i) {
      tenant.CountRequest(routers.now()).IgnoreError();
      if (tenant.Begin(1).ok()) running.push_back({router, routers.now() + absl::Seconds(2)});
    }
    most = std::max<int64_t>(most, std::ssize(running));
    sum += std::ssize(running);
    ++samples;
  });
  for (const Running& left : running) routers.tenant(left.router).End(1);
  EXPECT_LE(most, kMax + count) << "but for what two routers round up";
  EXPECT_GE(sum / samples, kMax * 6 / 10) << "and most of it is used";
}

INSTANTIATE_TEST_SUITE_P(Of, QuotaOverRouters, ::testing::Values(2, 3, 4),
                         [](const auto& param) { return absl::StrCat(param.param, "Routers"); });

TEST(QuotaExchange, ARouterThatStartsAgainKnowsWhatIsLeft) {
  constexpr int64_t kPerMinute = 600;
  Routers routers(2, {.requests_per_minute = kPerMinute});
  int64_t taken = 0;
  const auto ask = [&](int, Tenant& tenant) {
    for (int i = 0; i < 20; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
  };
  routers.Run(absl::Minutes(1), ask);
  for (int restart = 0; restart < 5; ++restart) {
    routers.Remove(restart + 1);
    routers.Add();
    // It hears of the others before clients come.
    routers.Run(absl::Seconds(2), [&](int router, Tenant& tenant) {
      if (router == 0) ask(router, tenant);
    });
    routers.Run(absl::Seconds(58), ask);
  }
  EXPECT_NEAR(static_cast<double>(taken), 7.0 * kPerMinute, 0.03 * 7 * kPerMinute);
}

TEST(QuotaExchange, ARouterThatIsGoneKeepsNoPart) {
  Routers routers(2, {.requests_per_minute = 100, .sequences_max = 10});
  routers.Run(absl::Seconds(5), [](int, Tenant&) {});
  EXPECT_EQ(routers.exchange(0).peers(routers.now()), 1);
  ASSERT_OK(routers.tenant(1).Begin(5));
  routers.Run(absl::Seconds(3), [](int, Tenant&) {});
  EXPECT_FALSE(routers.tenant(0).Begin(10).ok());
  routers.Remove(1);
  routers.Run(QuotaExchange::kSilence + absl::Seconds(2), [](int, Tenant&) {});
  EXPECT_EQ(routers.exchange(0).peers(routers.now()), 0);
  EXPECT_OK(routers.tenant(0).Begin(10));
  routers.tenant(0).End(10);
  routers.tenant(1).End(5);
}

// Property: whatever clients ask of which router, and with reports that are late by up to half
// their interval or brought by one of two nodes only, all that is given out from any moment on is
// at most a bucket, what flows into it since, and one request for each router. Where reports are
// lost on all ways, it is as much more as flows in until the next one arrives.
TEST(QuotaExchange, RandomDemandGetsNoMoreThanOneQuotaInAnyPeriod) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  for (int run = 0; run < 30; ++run) {
    const int count = 2 + static_cast<int>(random() % 4);
    const int64_t per_minute = std::array<int64_t, 4>{6, 60, 600, 6000}[random() % 4];
    Routers routers(count, {.requests_per_minute = per_minute});
    routers.Randomize(&random, /*lose_whole=*/run % 2 == 1);
    routers.Run(absl::Seconds(4), [](int, Tenant&) {});
    // The most that a bucket of the whole quota, filled at its rate, can be overdrawn by.
    double bucket = static_cast<double>(per_minute), lowest = bucket;
    std::vector<int64_t> wanted(count);
    absl::Time last = routers.now();
    routers.Run(absl::Seconds(90), [&](int router, Tenant& tenant) {
      const double flowed = absl::ToDoubleMinutes(routers.now() - last) * per_minute;
      bucket = std::min(bucket + flowed, static_cast<double>(per_minute));
      last = routers.now();
      // Each router's clients come and go, some in bursts.
      if (random() % 40 == 0)
        wanted[router] = random() % 3 == 0 ? std::min<int64_t>(per_minute, 200) : random() % 3;
      for (int64_t i = 0; i < wanted[router]; ++i)
        bucket -= tenant.CountRequest(routers.now()).ok() ? 1 : 0;
      lowest = std::min(lowest, bucket);
    });
    const double unheard =
        absl::ToDoubleMinutes(QuotaExchange::kInterval) * routers.lost_in_row_max() * per_minute;
    EXPECT_GE(lowest, -count - unheard)
        << count << " routers, " << per_minute << " a minute, run " << run << ", "
        << routers.lost_in_row_max() << " reports lost in a row";
    EXPECT_LE(lowest, 0.5 * static_cast<double>(per_minute)) << "nobody asked for much";
  }
}

// From the moment that each of two routers has heard of the other, however shortly before.
TEST(QuotaExchange, HoldsFromTheFirstReportOn) {
  for (int moment = 0; moment < 30; ++moment) {
    constexpr int64_t kPerMinute = 600;
    Routers routers(2, {.requests_per_minute = kPerMinute});
    const auto heard = [&](int router) {
      return routers.exchange(router).peers(routers.now()) > 0;
    };
    routers.Run(moment * kTick, [](int, Tenant&) {});
    while (!heard(0) || !heard(1)) routers.Tick();
    int64_t taken = 0;
    for (int router = 0; router < 2; ++router)
      for (int64_t i = 0; i < 2 * kPerMinute; ++i)
        taken += routers.tenant(router).CountRequest(routers.now()).ok() ? 1 : 0;
    EXPECT_LE(taken, kPerMinute) << "moment " << moment;
  }
}

// A fleet whose routers lose touch for long: then each gives out a quota, and later neither owes
// what the other has given out meanwhile.
TEST(QuotaExchange, ALongSeparationIsNotPaidForLater) {
  constexpr int64_t kPerMinute = 600;
  Routers routers(2, {.requests_per_minute = kPerMinute});
  int64_t taken = 0;
  const auto ask = [&](int, Tenant& tenant) {
    for (int i = 0; i < 20; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
  };
  routers.Run(absl::Seconds(5), ask);
  routers.Partition(true);
  routers.Run(absl::Minutes(10), ask);
  routers.Partition(false);
  taken = 0;
  routers.Run(absl::Minutes(2), ask);
  EXPECT_NEAR(static_cast<double>(taken), 2.0 * kPerMinute, 0.1 * kPerMinute);
}

// The contract's other side: routers that no node connects give out a quota each.
TEST(QuotaExchange, RoutersThatCannotHearOfEachOtherActAlone) {
  Routers routers(2, {.requests_per_minute = 600});
  routers.Partition(true);
  int64_t taken = 0;
  routers.Run(absl::Minutes(5), [&](int, Tenant& tenant) {
    for (int i = 0; i < 20; ++i) taken += tenant.CountRequest(routers.now()).ok() ? 1 : 0;
  });
  EXPECT_NEAR(static_cast<double>(taken), 2 * 6 * 600.0, 80);
}

TEST(QuotaExchange, TakesNoReportTwiceAndNoneThatCannotBe) {
  Routers routers(1, {.requests_per_minute = 100});
  QuotaExchange& exchange = routers.exchange(0);
  const QuotaExchange::Tenants tenants = {std::make_shared<Tenant>("alice")};
  tenants[0]->SetLimits({.requests_per_minute = 100});
  ASSERT_OK(tenants[0]->CountRequest(kStart));
  v1::RouterReport report;
  report.set_router_incarnation(1);
  report.set_version(1);
  v1::TenantUse& use = *report.add_tenants();
  use.set_tenant("alice");
  use.set_requests_left(100);
  exchange.OnReport(report, tenants, kStart);
  report.set_version(2);
  use.set_requests(10);
  for (int i = 0; i < 3; ++i) exchange.OnReport(report, tenants, kStart);
  EXPECT_EQ(tenants[0]->Use(kStart).requests_left, 89);
  // Left out for a while: it counts on from where it was.
  v1::RouterReport empty = report;
  empty.clear_tenants();
  empty.set_version(3);
  exchange.OnReport(empty, tenants, kStart);
  report.set_version(4);
  use.set_requests(15);
  exchange.OnReport(report, tenants, kStart);
  EXPECT_EQ(tenants[0]->Use(kStart).requests_left, 84);
  report.set_version(5);
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    use.set_requests(bad);
    exchange.OnReport(report, tenants, kStart);
    report.set_version(report.version() + 1);
  }
  use.set_requests(15);
  use.set_demand(-1);
  exchange.OnReport(report, tenants, kStart);
  EXPECT_EQ(tenants[0]->Use(kStart).requests_left, 84);
  for (uint64_t router = 2; router < 2 + 2 * QuotaExchange::kPeersMax; ++router) {
    report.set_router_incarnation(router);
    exchange.OnReport(report, tenants,
                      kStart + absl::Seconds(1) * static_cast<double>(router) / 1000);
  }
  EXPECT_EQ(exchange.peers(kStart + absl::Seconds(1)),
            static_cast<int64_t>(QuotaExchange::kPeersMax));
  for (size_t i = 0; i <= QuotaExchange::kTenantsMax; ++i) report.add_tenants()->set_tenant("x");
  report.set_router_incarnation(9999);
  exchange.OnReport(report, tenants, kStart + absl::Minutes(1));
  EXPECT_EQ(exchange.peers(kStart + absl::Minutes(1)), 0) << "more tenants than a report has";
}

// A router's word of one tenant with quotas of 100 requests and 1,000 tokens.
class OneTenant : public ::testing::Test {
 protected:
  OneTenant() {
    alice_->SetLimits({.requests_per_minute = 100, .tokens_per_minute = 1000});
    report_.set_router_incarnation(7);
  }
  // The other router has used so much, and so much is left there.
  void Hear(double requests, double tokens, double requests_left, double tokens_left) {
    report_.clear_tenants();
    v1::TenantUse& use = *report_.add_tenants();
    use.set_tenant("alice");
    use.set_requests(requests);
    use.set_tokens(tokens);
    use.set_requests_left(requests_left);
    use.set_tokens_left(tokens_left);
    HearAgain({alice_});
  }
  void HearAgain(const QuotaExchange::Tenants& tenants) {
    report_.set_version(report_.version() + 1);
    exchange_.OnReport(report_, tenants, kStart);
  }
  double requests_left() const { return alice_->Use(kStart).requests_left; }
  double tokens_left() const { return alice_->Use(kStart).tokens_left; }

  QuotaExchange exchange_{1};
  const std::shared_ptr<Tenant> alice_ = std::make_shared<Tenant>("alice");
  v1::RouterReport report_;
};

// The other router has forgotten the tenant: that gives nothing back.
TEST_F(OneTenant, ThatAnotherRouterCountsAnewGetsNothingBack) {
  Hear(5, 5000, 95, -4000);
  EXPECT_EQ(tokens_left(), -4000);
  Hear(0, 0, 100, 1000);
  EXPECT_EQ(requests_left(), 95);
  EXPECT_EQ(tokens_left(), -4000);
  Hear(1, 200, 99, 800);
  EXPECT_EQ(requests_left(), 94);
  EXPECT_EQ(tokens_left(), -4200);
  Hear(1, 100, 99, 900);  // what was charged too much
  EXPECT_EQ(tokens_left(), -4100);
}

// What a router gave out long ago, or before the tenant had a quota, is not taken off.
TEST_F(OneTenant, ThatARouterNamesLateOwesNoMoreThanABucketLacks) {
  HearAgain({alice_});
  Hear(100'000, 3, 90, 900);
  EXPECT_EQ(requests_left(), 90);
  EXPECT_EQ(tokens_left(), 997);
}

// Both routers read a file without it, and one with it: what was used is not taken off again.
TEST_F(OneTenant, ThatLeavesTheKeysFileAndReturnsIsCountedOn) {
  Hear(10, 100, 90, 900);
  report_.clear_tenants();
  HearAgain({});
  HearAgain({alice_});
  Hear(12, 110, 88, 890);
  EXPECT_EQ(requests_left(), 88);
  EXPECT_EQ(tokens_left(), 890);
}

// Only this router read a file without it. Of what the other one gave out meanwhile, its bucket
// shows the last minute.
TEST_F(OneTenant, ThatIsMissingFromTheKeysFileHereOwesNoMoreThanTheLastMinute) {
  Hear(10, 100, 90, 900);
  v1::TenantUse& use = *report_.mutable_tenants(0);
  use.set_requests(5000);
  use.set_tokens(50'000);
  use.set_requests_left(80);
  use.set_tokens_left(800);
  HearAgain({});
  HearAgain({alice_});
  EXPECT_EQ(requests_left(), 80);
  EXPECT_EQ(tokens_left(), 800);
}

}  // namespace
}  // namespace tandem::router
