// Goal: requests ask for tiers by their shares, the same ones each time, and evenly wherever one
// looks; what is no share is refused by name.
#include "sim/trace/service_mix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

router::ServiceTiers Tiers() {
  return router::ServiceTiers::Parse({"chat ttft=1s", "batch"}, router::ServiceTier()).value();
}

std::vector<std::string> NamesOf(const ServiceMix& mix, int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(mix.TierOf(i)->name);
  return names;
}

std::map<std::string, int> Counts(const std::vector<std::string>& names) {
  std::map<std::string, int> counts;
  for (const std::string& name : names) ++counts[name];
  return counts;
}

TEST(ServiceMix, EachTierGetsItsShareEverywhere) {
  ASSERT_OK_AND_ASSIGN(const ServiceMix known,
                       ServiceMix::Parse({"chat:3", "default:1", "batch:4"}, Tiers()));
  ASSERT_OK_AND_ASSIGN(const ServiceMix named,
                       ServiceMix::ParseNames({"chat:3", "default:1", "batch:4"}, 7));
  for (const ServiceMix* mix : {&known, &named}) {
    for (const int64_t count : {80, 800, 8000}) {
      std::map<std::string, int> counts = Counts(NamesOf(*mix, count));
      EXPECT_NEAR(counts["chat"], 3 * count / 8, 3);
      EXPECT_NEAR(counts["default"], count / 8, 3);
      EXPECT_NEAR(counts["batch"], count / 2, 3);
    }
  }
  EXPECT_EQ(known.TierOf(0)->ttft_slo, absl::Seconds(1)) << "the goals are the tiers'";
  std::vector<std::string> all;
  for (const auto& tier : known.All()) all.push_back(tier->name);
  EXPECT_THAT(all, ElementsAre("chat", "default", "batch"));
}

TEST(ServiceMix, TheSeedDecidesWhichRequestNamesWhat) {
  const auto drawn = [](uint64_t seed) {
    return NamesOf(ServiceMix::ParseNames({"a:1", "b:1"}, seed).value(), 64);
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(ServiceMix, WithoutSharesNoTierIsNamed) {
  ASSERT_OK_AND_ASSIGN(const ServiceMix mix, ServiceMix::ParseNames({}, 1));
  EXPECT_TRUE(mix.empty());
  EXPECT_EQ(mix.TierOf(0), nullptr);
  EXPECT_TRUE(mix.All().empty());
}

TEST(ServiceMix, WhatIsNoShareIsNamed) {
  const auto why = [](const std::vector<std::string>& shares, bool known) {
    const auto mix = known ? ServiceMix::Parse(shares, Tiers()) : ServiceMix::ParseNames(shares, 1);
    EXPECT_EQ(mix.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(mix.status().message());
  };
  for (const bool known : {true, false}) {
    EXPECT_THAT(why({"chat"}, known), HasSubstr("\"chat\": expected NAME:SHARE"));
    EXPECT_THAT(why({"batch:1", "chat:0"}, known), HasSubstr("\"chat:0\""));
    EXPECT_THAT(why({"chat:inf"}, known), HasSubstr("\"chat:inf\""));
    EXPECT_THAT(why({"chat:1", "chat:2"}, known), HasSubstr("an earlier share is of this tier"));
  }
  EXPECT_THAT(why({"gold:1"}, true), HasSubstr("expected default, chat, batch"));
  EXPECT_THAT(why({"Gold:1"}, false), HasSubstr("expected a name of 1 to 32"));
  EXPECT_OK(ServiceMix::ParseNames({"gold:1"}, 1).status());
  std::vector<std::string> many;
  for (int i = 0; i < 18; ++i) many.push_back(absl::StrCat("t", i, ":1"));
  EXPECT_THAT(why(many, false), HasSubstr("at most 17 tiers"));
  many.pop_back();
  EXPECT_OK(ServiceMix::ParseNames(many, 1).status());
}

}  // namespace
}  // namespace tandem::sim
