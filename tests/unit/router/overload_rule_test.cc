// Goal: the rule that refuses requests refuses none below capacity, none after a stall, of a burst
// or of a few clients on a slow machine; at twice capacity what it accepts has waited little and
// the server is kept busy; and it ends as soon as the load falls. In virtual time, with random
// arrivals and services.
#include "router/front_end/overload_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

namespace tandem::router {
namespace {

constexpr absl::Duration kTarget = absl::Milliseconds(100);
constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr absl::Duration kService = absl::Microseconds(400);  // on average
// What it takes to refuse one.
constexpr absl::Duration kRefusal = absl::Microseconds(20);

struct Request {
  absl::Time came, seen;
  bool refused = false;
  absl::Duration waited() const { return seen - came; }
};

// A server that takes requests one after the other, in the order in which they came.
class Server {
 public:
  using Service = std::function<absl::Duration(std::mt19937_64&)>;

  Server(uint64_t seed, Service service) : random_(seed), service_(std::move(service)) {}

  // `load` of its capacity comes for `time`, at random.
  void Come(double load, absl::Duration time) {
    const absl::Time end = now_ + time;
    std::exponential_distribution<> gap(load);
    while ((now_ += gap(random_) * kService) < end) Serve(now_);
    now_ = end;
  }
  // One comes at `at`, not before the last one.
  void Serve(absl::Time at) {
    Request request{at, std::max(at, free_)};
    rule_.Observe(request.waited(), request.seen);
    request.refused = request.waited() > rule_.waited_max();
    free_ = request.seen + (request.refused ? kRefusal : service_(random_));
    served_.push_back(request);
  }
  // Nothing is done for `time`.
  void Stall(absl::Duration time) { free_ = std::max(free_, now_) + time; }

  absl::Time now() const { return now_; }
  absl::Time free() const { return free_; }
  const std::vector<Request>& served() const { return served_; }
  int64_t refused() const {
    return std::count_if(served_.begin(), served_.end(),
                         [](const Request& request) { return request.refused; });
  }
  bool overloaded() const { return rule_.overloaded(); }

 private:
  std::mt19937_64 random_;
  const Service service_;
  OverloadRule rule_{{kTarget, kInterval}};
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1), free_ = now_;
  std::vector<Request> served_;
};

absl::Duration Always(std::mt19937_64&) { return kService; }
absl::Duration Exponential(std::mt19937_64& random) {
  return std::exponential_distribution<>(1)(random) * kService;
}
// One of a hundred takes twenty times as long.
absl::Duration Mixed(std::mt19937_64& random) {
  return (random() % 100 == 0 ? 20 : 80.0 / 99) * kService;
}

absl::Duration WaitOf(const std::vector<Request>& served, absl::Time from, double quantile) {
  std::vector<absl::Duration> waits;
  for (const Request& request : served) {
    if (!request.refused && request.came >= from) waits.push_back(request.waited());
  }
  std::sort(waits.begin(), waits.end());
  return waits[static_cast<size_t>(quantile * static_cast<double>(waits.size() - 1))];
}

class OverloadRuleTest : public ::testing::TestWithParam<Server::Service> {
 protected:
  OverloadRuleTest() : seed_(std::random_device()()) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  const uint64_t seed_;
};

TEST_P(OverloadRuleTest, BelowCapacityRefusesNone) {
  for (const double load : {0.1, 0.5, 0.8, 0.9}) {
    Server server(seed_, GetParam());
    server.Come(load, 100'000 / load * kService);
    EXPECT_GT(server.served().size(), 90'000u);
    EXPECT_EQ(server.refused(), 0) << "at " << load << " of capacity";
  }
}

TEST_P(OverloadRuleTest, AtTwiceCapacityServesInTimeWhatItAccepts) {
  Server server(seed_, GetParam());
  const absl::Time begin = server.now();
  server.Come(2, 50'000 * kService);
  const auto count = static_cast<double>(server.served().size());
  const double accepted = count - static_cast<double>(server.refused());
  EXPECT_GT(count, 90'000);
  // The time to tell an overload from a burst: the queue grows for as long.
  EXPECT_LE(WaitOf(server.served(), begin, 1), 10 * kTarget);
  EXPECT_LE(WaitOf(server.served(), begin + 2 * kInterval, 1), 2 * kTarget);
  EXPECT_GE(WaitOf(server.served(), begin + 2 * kInterval, 0.01), kTarget) << "it ran empty";
  EXPECT_GE(absl::FDivDuration(accepted * kService, server.free() - begin), 0.9)
      << "of its capacity";
}

TEST_P(OverloadRuleTest, EndsWhenTheLoadFalls) {
  Server server(seed_, GetParam());
  server.Come(2, absl::Seconds(10));
  EXPECT_TRUE(server.overloaded());
  const absl::Time fell = server.now();
  server.Come(0.5, absl::Seconds(10));
  EXPECT_FALSE(server.overloaded());
  for (const Request& request : server.served()) {
    // Who came before waits in the queue; who comes later soon finds a shorter one.
    if (request.refused) {
      EXPECT_LE(request.came, fell + 2 * kTarget);
    }
  }
  EXPECT_LE(WaitOf(server.served(), fell + absl::Seconds(1), 1), kTarget);
}

TEST_P(OverloadRuleTest, StallsAreNoOverload) {
  Server server(seed_, GetParam());
  for (const double load : {0.01, 0.1, 0.3}) {
    for (int i = 0; i < 20; ++i) {
      server.Come(load, absl::Seconds(3));
      server.Stall(absl::Seconds(1));
    }
  }
  EXPECT_EQ(server.refused(), 0);
}

TEST_P(OverloadRuleTest, BurstsAreNoOverload) {
  Server server(seed_, GetParam());
  for (int burst = 0; burst < 10; ++burst) {
    const absl::Time at = std::max(server.now(), server.free());
    for (int i = 0; i < 2000; ++i) server.Serve(at);  // 0.8 s of work, all at once
    server.Come(0.1, absl::Seconds(2));
  }
  EXPECT_EQ(server.refused(), 0);
}

INSTANTIATE_TEST_SUITE_P(Services, OverloadRuleTest, ::testing::Values(Always, Exponential, Mixed));

TEST(OverloadRule, AFewClientsOfASlowServerAreNoQueue) {
  OverloadRule rule({kTarget, kInterval});
  absl::Time now = absl::UnixEpoch();
  // 60 clients, each asking again as soon as it is answered.
  for (int i = 0; i < 10'000; ++i) {
    now += absl::Milliseconds(10);
    rule.Observe(absl::Milliseconds(600), now);
    ASSERT_FALSE(rule.overloaded());
  }
}

TEST(OverloadRule, OneThatHasNotWaitedEndsIt) {
  OverloadRule rule({kTarget, kInterval});
  absl::Time now = absl::UnixEpoch();
  for (; !rule.overloaded(); now += absl::Milliseconds(1)) rule.Observe(kTarget, now);
  EXPECT_EQ(rule.waited_max(), 2 * kTarget);
  // Four parts, of which each is ended by the next one's first request; before, the first of all.
  EXPECT_GE(now - absl::UnixEpoch(), kInterval);
  EXPECT_LE(now - absl::UnixEpoch(), kInterval + absl::Milliseconds(10));
  rule.Observe(kTarget - absl::Nanoseconds(1), now);
  EXPECT_FALSE(rule.overloaded());
  EXPECT_EQ(rule.waited_max(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace tandem::router
