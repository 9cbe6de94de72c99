// Goal: a keys file names tenants with several keys each, and bad lines are named; quotas refill by
// the minute and hold for what was computed; a tenant has so many sequences at a time; names, salts
// and priorities of one tenant are no other's; a changed file is taken, a broken one is not, and
// what was used stays counted.
#include "router/front_end/tenant.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "router/front_end/api_keys.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

const absl::Time kNow = absl::UnixEpoch();

std::unique_ptr<ApiKeys> Keys(const std::string& text) {
  auto keys = ApiKeys::Parse(text, "file");
  EXPECT_OK(keys.status());
  return *std::move(keys);
}

std::string Line(const std::string& tenant, const std::string& key,
                 const std::string& settings = "") {
  return absl::StrCat(tenant, " ", Sha256Hex(key), " ", settings, "\n");
}

std::shared_ptr<Tenant> TenantOf(const ApiKeys& keys, const std::string& key) {
  auto tenant = keys.Identify("Bearer " + key);
  EXPECT_OK(tenant.status());
  return *std::move(tenant);
}

TEST(ApiKeys, RefillByTheMinute) {
  const auto keys = Keys(Line("a", "k", "requests_per_minute=60 tokens_per_minute=120 # x"));
  absl::Time now = kNow;
  std::shared_ptr<Tenant> tenant;
  for (int i = 0; i < 60; ++i) {
    ASSERT_OK_AND_ASSIGN(tenant, keys->Admit("Bearer k", now));
  }
  EXPECT_THAT(keys->Admit("Bearer k", now),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("60 requests a minute")));
  now += absl::Seconds(1);
  EXPECT_OK(keys->Admit("Bearer k", now));
  tenant->Charge(240, now);
  now += absl::Seconds(30);
  EXPECT_THAT(keys->Admit("Bearer k", now),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("120 tokens a minute")));
  now += absl::Seconds(60);
  EXPECT_OK(keys->Admit("Bearer k", now));
  EXPECT_THAT(keys->Admit("Bearer kk", now),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("unknown API key")));
  EXPECT_THAT(keys->Admit("", now), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("")));
}

TEST(ApiKeys, ATenantMayBeLimitedToServiceTiers) {
  ASSERT_OK_AND_ASSIGN(const ServiceTiers tiers,
                       ServiceTiers::Parse({"flex", "gold"}, ServiceTier()));
  ASSERT_OK_AND_ASSIGN(const auto keys,
                       ApiKeys::Parse(Line("a", "k", "service_tiers=flex,default") + Line("b", "l"),
                                      "file", &tiers));
  EXPECT_EQ(TenantOf(*keys, "k")->limits().service_tiers,
            (std::vector<std::string>{"flex", "default"}));
  EXPECT_TRUE(TenantOf(*keys, "l")->limits().service_tiers.empty());
  const auto why = [&](const std::string& setting, const ServiceTiers* known) {
    return std::string(ApiKeys::Parse(Line("a", "k", setting), "file", known).status().message());
  };
  EXPECT_THAT(why("service_tiers=flex,silver", &tiers),
              HasSubstr("file:1: \"service_tiers=flex,silver\", \"silver\" is no service tier, "
                        "expected default, flex, gold"));
  EXPECT_THAT(why("service_tiers=flex,flex", &tiers), HasSubstr("expected each tier once"));
  EXPECT_THAT(why("service_tiers=", &tiers), HasSubstr("is no service tier"));
  EXPECT_EQ(why("service_tiers=silver", nullptr), "") << "the router's tiers are not known here";
  EXPECT_THAT(why("service_tiers=Silver", nullptr), HasSubstr("lower-case"));
}

TEST(ApiKeys, BadFilesNameTheLine) {
  const auto why = [](const std::string& text) {
    return std::string(ApiKeys::Parse(text, "file").status().message());
  };
  const std::string hash = Sha256Hex("x");
  EXPECT_THAT(why("\nname"), HasSubstr("file:2: "));
  EXPECT_THAT(why("name abcd"), HasSubstr("64 hex digits"));
  EXPECT_THAT(why("name " + hash + " requests=5"), HasSubstr("requests=5"));
  EXPECT_THAT(why("name " + hash + " sequences=0"), HasSubstr("at least 1"));
  EXPECT_THAT(why("name " + hash + " weight=0"), HasSubstr("at least 1"));
  EXPECT_THAT(why("name " + hash + " weight=1001"), HasSubstr("at most 1000"));
  EXPECT_THAT(why("name " + hash + " priority=5"), HasSubstr("MIN..MAX"));
  EXPECT_THAT(why("name " + hash + " priority=5..1"), HasSubstr("MIN..MAX"));
  EXPECT_THAT(why("name " + hash + " scopes=root"), HasSubstr("infer,admin"));
  EXPECT_THAT(why("na/me " + hash), HasSubstr("\"/\""));
  EXPECT_THAT(why(std::string(kTenantNameBytesMax + 1, 'n') + " " + hash), HasSubstr("1 to 64"));
  EXPECT_THAT(why(Line("a", "x") + Line("b", "x")), HasSubstr("file:2: this hash"));
  EXPECT_THAT(why(Line("a", "x", "sequences=1") + Line("a", "y", "sequences=2")),
              HasSubstr("an earlier line gives a sequences=1"));
}

TEST(ApiKeys, SeveralKeysShareTheirTenantsQuota) {
  const auto keys = Keys(Line("a", "old", "requests_per_minute=2") + Line("a", "new"));
  EXPECT_EQ(TenantOf(*keys, "old"), TenantOf(*keys, "new"));
  EXPECT_OK(keys->Admit("Bearer old", kNow));
  EXPECT_OK(keys->Admit("Bearer new", kNow));
  EXPECT_FALSE(keys->Admit("Bearer old", kNow).ok());
}

TEST(Tenant, TokensThatWereNotComputedAreGivenBack) {
  Tenant tenant("a");
  tenant.SetLimits({.tokens_per_minute = 100});
  EXPECT_OK(tenant.CountRequest(kNow));
  tenant.Charge(100, kNow);
  EXPECT_FALSE(tenant.CountRequest(kNow).ok());
  tenant.Charge(-100, kNow);
  EXPECT_OK(tenant.CountRequest(kNow));
  tenant.Charge(-100, kNow);  // a bucket holds one minute's amount and no more
  tenant.Charge(100, kNow);
  EXPECT_FALSE(tenant.CountRequest(kNow).ok());
}

TEST(Tenant, RunsSoManySequencesAtATime) {
  const auto tenant = std::make_shared<Tenant>("a");
  tenant->SetLimits({.sequences_max = 5});
  auto first = TenantCall::Begin(tenant, 5);
  ASSERT_OK(first.status());
  EXPECT_THAT(TenantCall::Begin(tenant, 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("a has 5 sequences running, and 1 more would pass its 5")));
  std::shared_ptr<const TenantCall> shared = *first;
  first = absl::CancelledError("");
  EXPECT_EQ(tenant->sequences(), 5) << "one owner is left";
  shared = nullptr;
  EXPECT_EQ(tenant->sequences(), 0);
  EXPECT_OK(TenantCall::Begin(tenant, 5).status());
}

TEST(Tenant, AResumedCallTakesOverThePlaceOfTheOneThatRuns) {
  const auto tenant = std::make_shared<Tenant>("a");
  tenant->SetLimits({.sequences_max = 2});
  auto lost = TenantCall::Begin(tenant, 2, "r");
  ASSERT_OK(lost.status());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("a has 2"));
  EXPECT_THAT(TenantCall::Begin(tenant, 1, "r").status(), full) << "it does not resume";
  EXPECT_THAT(TenantCall::Begin(tenant, 1, "other", true).status(), full);
  EXPECT_THAT(TenantCall::Begin(tenant, 3, "r", true).status(), full) << "it has more sequences";
  auto resumed = TenantCall::Begin(tenant, 2, "r", true);
  ASSERT_OK(resumed.status());
  EXPECT_EQ(tenant->sequences(), 2);
  lost = absl::CancelledError("");
  EXPECT_EQ(tenant->sequences(), 2) << "it has its place still";
  auto again = TenantCall::Begin(tenant, 2, "r", true);
  ASSERT_OK(again.status());
  resumed = again = absl::CancelledError("");
  EXPECT_EQ(tenant->sequences(), 0);
  ASSERT_OK(TenantCall::Begin(tenant, 2, "r", true).status()) << "none runs";
  EXPECT_EQ(tenant->sequences(), 0);
}

// A second call with the id of one that runs is refused, and changes nothing for the first.
TEST(Tenant, ACallThatEndsLeavesOthersWithItsIdAsTheyAre) {
  const auto tenant = std::make_shared<Tenant>("a");
  tenant->SetLimits({.sequences_max = 2});
  const auto first = TenantCall::Begin(tenant, 1, "r");
  ASSERT_OK(TenantCall::Begin(tenant, 1, "r").status());
  const auto other = TenantCall::Begin(tenant, 1, "other");
  ASSERT_OK(other.status());
  EXPECT_OK(TenantCall::Begin(tenant, 1, "r", true).status());
  EXPECT_EQ(tenant->sequences(), 2);
}

TEST(Tenant, NamesAreItsOwn) {
  Tenant alice("alice"), bob("bob"), admin("root");
  admin.SetLimits({.is_admin = true});
  EXPECT_NE(alice.ScopedId("r"), bob.ScopedId("r"));
  EXPECT_NE(bob.SoughtId("alice/r"), alice.ScopedId("r"));
  EXPECT_EQ(bob.SoughtId("r"), bob.ScopedId("r"));
  EXPECT_EQ(admin.SoughtId("alice/r"), alice.ScopedId("r"));
  EXPECT_EQ(admin.SoughtId("r"), admin.ScopedId("r"));
}

TEST(Tenant, SaltsAreItsOwnOrItsGroups) {
  Tenant alice("alice"), bob("bob"), carol("carol"), group("g");
  bob.SetLimits({.cache_group = "g"});
  carol.SetLimits({.cache_group = "g"});
  EXPECT_NE(alice.CacheSalt(""), bob.CacheSalt(""));
  EXPECT_EQ(bob.CacheSalt("s"), carol.CacheSalt("s"));
  EXPECT_NE(bob.CacheSalt("s"), bob.CacheSalt("t"));
  EXPECT_NE(group.CacheSalt(""), bob.CacheSalt("")) << "a tenant of the group's name is not in it";
}

TEST(Tenant, PrioritiesHaveARange) {
  const auto keys = Keys(Line("plain", "p") + Line("urgent", "u", "priority=-10..10") +
                         Line("any", "a", "priority=.."));
  EXPECT_THAT(TenantOf(*keys, "p")->CheckPriority(-1),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("-1, expected 0 to")));
  EXPECT_OK(TenantOf(*keys, "p")->CheckPriority(1000));
  EXPECT_OK(TenantOf(*keys, "u")->CheckPriority(-10));
  EXPECT_FALSE(TenantOf(*keys, "u")->CheckPriority(-11).ok());
  EXPECT_FALSE(TenantOf(*keys, "u")->CheckPriority(11).ok());
  EXPECT_OK(TenantOf(*keys, "a")->CheckPriority(-2000000000));
}

TEST(Tenant, ScopesSayWhatItMayDo) {
  const auto keys = Keys(Line("a", "a") + Line("b", "b", "scopes=admin"));
  EXPECT_OK(TenantOf(*keys, "a")->CheckMayInfer());
  EXPECT_FALSE(TenantOf(*keys, "a")->limits().is_admin);
  EXPECT_THAT(TenantOf(*keys, "b")->CheckMayInfer(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("scope infer")));
}

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() { SetLogLevel(LogLevel::kError); }
  ~ReloadTest() override { std::remove(path_.c_str()); }
  // As `tandem keys` writes: a new file takes the old one's place.
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    ASSERT_EQ(std::rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/keys-", ::getpid());
};

TEST_F(ReloadTest, TakesWhatChangedAndKeepsWhatWasUsed) {
  Write(Line("a", "k", "requests_per_minute=1") + Line("b", "gone"));
  ASSERT_OK_AND_ASSIGN(const auto keys, ApiKeys::Load(path_));
  EXPECT_OK(keys->Admit("Bearer k", kNow));
  Write(Line("a", "k2", "requests_per_minute=1") + Line("c", "come"));
  EXPECT_FALSE(keys->Identify("Bearer come").ok()) << "nobody has looked at the file yet";
  keys->ReloadIfChanged();
  EXPECT_OK(keys->Identify("Bearer come").status());
  EXPECT_FALSE(keys->Identify("Bearer gone").ok());
  EXPECT_FALSE(keys->Identify("Bearer k").ok());
  EXPECT_EQ(keys->Admit("Bearer k2", kNow).status().code(), absl::StatusCode::kResourceExhausted)
      << "a new key of the same tenant";
}

// A tenant's only key is replaced in two steps, or the file is looked at while it is written.
TEST_F(ReloadTest, ATenantThatComesBackGoesOnWithWhatItHasUsed) {
  const std::string alice = Line("alice", "k", "sequences=1 requests_per_minute=1");
  Write(Line("bob", "b") + alice);
  ASSERT_OK_AND_ASSIGN(const auto keys, ApiKeys::Load(path_));
  std::weak_ptr<Tenant> before;
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Tenant> tenant, keys->Admit("Bearer k", kNow));
    before = tenant;
    ASSERT_OK_AND_ASSIGN(const auto call, TenantCall::Begin(tenant, 1));
    Write(Line("bob", "b"));
    ASSERT_OK(*keys->ReloadIfChanged());
    EXPECT_FALSE(keys->Identify("Bearer k").ok());
    Write(alice);
    ASSERT_OK(*keys->ReloadIfChanged());
    EXPECT_THAT(TenantCall::Begin(TenantOf(*keys, "k"), 1).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1 sequences running")));
  }
  Write("");
  ASSERT_OK(*keys->ReloadIfChanged());
  EXPECT_TRUE(keys->tenants().empty()) << "the only key may have been revoked";
  Write(alice);
  ASSERT_OK(*keys->ReloadIfChanged());
  EXPECT_EQ(TenantOf(*keys, "k"), before.lock());
  EXPECT_EQ(keys->Admit("Bearer k", kNow).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ReloadTest, OfTenantsThatAreGoneSoManyAreRemembered) {
  ASSERT_OK_AND_ASSIGN(const auto keys, ApiKeys::Parse(Line("calls", "c"), path_));
  const std::shared_ptr<Tenant> calls = TenantOf(*keys, "c");
  std::vector<std::weak_ptr<Tenant>> gone;
  for (int file = 0; file < 3; ++file) {
    std::string text;
    for (size_t i = 0; i < ApiKeys::kDroppedMax; ++i)
      text += Line(absl::StrCat("t", file, "-", i), absl::StrCat(file, " ", i));
    Write(text);
    ASSERT_OK(keys->Reload());
    for (const auto& tenant : keys->tenants()) gone.push_back(tenant);
  }
  Write(Line("calls", "c"));
  ASSERT_OK(keys->Reload());
  EXPECT_EQ(TenantOf(*keys, "c"), calls) << "it is in use";
  const auto remembered =
      std::count_if(gone.begin(), gone.end(), [](const auto& tenant) { return !tenant.expired(); });
  EXPECT_EQ(remembered, static_cast<int64_t>(ApiKeys::kDroppedMax));
}

TEST_F(ReloadTest, ABrokenFileChangesNothing) {
  Write(Line("a", "k"));
  ASSERT_OK_AND_ASSIGN(const auto keys, ApiKeys::Load(path_));
  Write("nonsense\n");
  keys->ReloadIfChanged();
  EXPECT_OK(keys->Identify("Bearer k").status());
  std::remove(path_.c_str());
  keys->ReloadIfChanged();
  EXPECT_OK(keys->Identify("Bearer k").status());
  EXPECT_THAT(ApiKeys::Load(path_), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
}

}  // namespace
}  // namespace tandem::router
