// Goal: a source that guesses API keys waits longer and longer, whatever key it sends; a right key
// and other sources are not held up by it; what the router remembers of sources is bounded.
#include "router/front_end/failed_keys.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/error_details.h"
#include "router/front_end/api_keys.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

constexpr char kSource[] = "192.0.2.7";

std::string RetryAfter(const absl::Status& status) {
  return std::string(status.GetPayload(rpc::kRetryAfterPayload).value_or(absl::Cord("none")));
}

TEST(FailedKeys, EachWrongKeyBeyondTheFreeOnesDoublesTheWait) {
  FailedKeys failed(2);
  absl::Time now = absl::UnixEpoch();
  for (int i = 0; i < 2; ++i) failed.OnWrongKey(kSource, now);
  EXPECT_OK(failed.MayTry(kSource, now));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    failed.OnWrongKey(kSource, now);
    const absl::Status refused = failed.MayTry(kSource, now);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(kSource)));
    EXPECT_EQ(RetryAfter(refused), absl::StrCat(seconds));
    now += absl::Seconds(seconds);
    EXPECT_OK(failed.MayTry(kSource, now));
  }
  EXPECT_OK(failed.MayTry("192.0.2.8", absl::UnixEpoch()));
}

TEST(FailedKeys, ARightKeyEndsTheCount) {
  FailedKeys failed(1);
  const absl::Time now = absl::UnixEpoch();
  failed.OnWrongKey(kSource, now);
  failed.OnRightKey(kSource);
  failed.OnWrongKey(kSource, now);
  EXPECT_OK(failed.MayTry(kSource, now));
}

TEST(FailedKeys, ZeroMeansNoWait) {
  FailedKeys failed(0);
  for (int i = 0; i < 100; ++i) failed.OnWrongKey(kSource, absl::UnixEpoch());
  EXPECT_OK(failed.MayTry(kSource, absl::UnixEpoch()));
}

// At the bound the source that failed longest ago is forgotten, and only that one.
TEST(FailedKeys, RemembersABoundedNumberOfSources) {
  FailedKeys failed(1);
  const absl::Time now = absl::UnixEpoch();
  const auto fail_twice = [&](const std::string& source) {
    for (int i = 0; i < 2; ++i) failed.OnWrongKey(source, now);
  };
  fail_twice("first");
  fail_twice("second");
  for (size_t i = 2; i < FailedKeys::kSourcesMax; ++i) fail_twice(absl::StrCat("source ", i));
  EXPECT_FALSE(failed.MayTry("first", now).ok());
  failed.OnWrongKey("first", now);
  fail_twice("one more");
  EXPECT_FALSE(failed.MayTry("first", now).ok());
  EXPECT_OK(failed.MayTry("second", now));
  EXPECT_FALSE(failed.MayTry("source 2", now).ok());
}

TEST(FailedKeys, ASourceIsAnAddressOrANetwork) {
  EXPECT_EQ(SourceOfAddress("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(SourceOfAddress("::ffff:192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(SourceOfAddress("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(SourceOfGrpcPeer("ipv4:192.0.2.7:4711"), "192.0.2.7");
  EXPECT_EQ(SourceOfGrpcPeer("ipv6:%5B2001:db8::9%5D:4711"), "2001:db8::/64");
  EXPECT_EQ(SourceOfGrpcPeer("ipv6:[2001:db8::9]:4711"), "2001:db8::/64");
  EXPECT_EQ(SourceOfGrpcPeer("unix:/run/a"), "unix:/run/a");
}

// A guesser must not learn that its guess was right; a client that forgot its key guesses nothing.
TEST(FailedKeys, HoldsUpEveryKeyOfTheSource) {
  ASSERT_OK_AND_ASSIGN(const auto keys,
                       ApiKeys::Parse(absl::StrCat("a ", Sha256Hex("right"), "\n"), "file"));
  absl::Time now = absl::UnixEpoch();
  for (int64_t i = 0; i <= kWrongKeysInARow; ++i) {
    EXPECT_THAT(keys->IdentifyFrom(kSource, "", now),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("missing")));
    EXPECT_THAT(keys->IdentifyFrom(kSource, "Bearer wrong", now),
                StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("unknown API key")));
  }
  EXPECT_THAT(keys->AdmitFrom(kSource, "Bearer right", now),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("wrong API keys in a row")));
  EXPECT_OK(keys->AdmitFrom("192.0.2.8", "Bearer right", now));
  now += FailedKeys::kFirstWait;
  EXPECT_OK(keys->AdmitFrom(kSource, "Bearer right", now));
}

}  // namespace
}  // namespace tandem::router
