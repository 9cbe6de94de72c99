// Goal: a request counts as in time, late, refused, aborted or failed as its tier's goals and its
// end say, once, under its tier's name.
#include "router/front_end/service_measure.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

class ServiceMeasureTest : public ::testing::Test {
 protected:
  ServiceMeasureTest() {
    ServiceTier tier;
    tier.name = "chat";
    tier.ttft_slo = absl::Seconds(1);
    tier.gap_slo = absl::Milliseconds(50);
    tier_ = std::make_shared<const ServiceTier>(tier);
    metrics_.emplace(tier, registry_, MetricLabels());
  }
  ServiceMeasure Start() { return {tier_, *metrics_}; }
  // A request of 1 + `gaps.size()` tokens.
  void Answer(absl::Duration first_token, const std::vector<absl::Duration>& gaps) {
    ServiceMeasure measure = Start();
    measure.OnFirstToken(first_token);
    for (const absl::Duration gap : gaps) measure.OnTokens(1, gap);
    measure.OnEnd(absl::OkStatus(), false);
  }
  void ExpectCount(const std::string& outcome, int count) {
    EXPECT_THAT(registry_.Text(), HasSubstr(absl::StrCat(
                                      "tandem_tier_requests_total{service_tier=\"chat\",outcome=\"",
                                      outcome, "\"} ", count, "\n")));
  }

  MetricRegistry registry_;
  std::shared_ptr<const ServiceTier> tier_;
  std::optional<TierMetrics> metrics_;
};

constexpr absl::Duration kMs = absl::Milliseconds(1);

TEST_F(ServiceMeasureTest, TheMeanGapAndTheFirstTokenDecide) {
  Answer(absl::Seconds(1), {90 * kMs, 10 * kMs});  // 50 ms on average
  ExpectCount("in_time", 1);
  Answer(absl::Seconds(1) + kMs, {});
  ExpectCount("late", 1);
  Answer(kMs, {90 * kMs, 12 * kMs});
  ExpectCount("late", 2);
  ServiceMeasure together = Start();  // four tokens came after 160 ms
  together.OnFirstToken(kMs);
  together.OnTokens(4, 160 * kMs);
  together.OnEnd(absl::OkStatus(), false);
  ExpectCount("in_time", 2);
}

TEST_F(ServiceMeasureTest, EndsAreCountedByTheirReason) {
  Start().OnEnd(absl::ResourceExhaustedError("late"), false);
  Start().OnRefused();
  ExpectCount("refused", 2);
  ServiceMeasure slow_reader = Start();
  slow_reader.OnFirstToken(kMs);
  slow_reader.OnEnd(absl::ResourceExhaustedError("the client reads too slowly"), false);
  Start().OnEnd(absl::UnavailableError("no node"), false);
  ExpectCount("failed", 2);
  Start().OnEnd(absl::CancelledError(), false);
  Start().OnEnd(absl::OkStatus(), /*aborted=*/true);
  ExpectCount("aborted", 2);
  ExpectCount("in_time", 0);
}

TEST(ServiceTier, WithoutGoalsEveryAnswerIsInTime) {
  EXPECT_TRUE(ServiceTier().InTime(absl::Hours(1), absl::Hours(1), 1));
}

TEST(ServiceTier, TheMeanGapMayBeTheGoalAndNoLonger) {
  ServiceTier tier;
  tier.gap_slo = absl::Milliseconds(50);
  const absl::Duration any = absl::Hours(1);  // no goal for the first token
  EXPECT_TRUE(tier.InTime(any, absl::Milliseconds(10), 2));
  EXPECT_TRUE(tier.InTime(any, absl::Milliseconds(100), 2));
  EXPECT_FALSE(tier.InTime(any, absl::Milliseconds(100) + absl::Nanoseconds(1), 2));
  EXPECT_TRUE(tier.InTime(any, absl::ZeroDuration(), 0)) << "an answer of one token has no gap";
}

}  // namespace
}  // namespace tandem::router
