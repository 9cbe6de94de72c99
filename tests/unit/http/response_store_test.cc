// Goal: kept responses are found by their owner alone, the bounds in number and bytes hold after
// every call, and who keeps most makes room first.
#include "router/front_end/http/response_store.h"

#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

using Kept = ResponseStore::Kept;

constexpr char kAlice[] = "alice", kBob[] = "bob", kNobody[] = "";

TEST(ResponseStore, OwnersSeeTheirOwn) {
  ResponseStore store({.responses_max = 4});
  store.Keep(kAlice, "resp_1", {"a", "i"});
  store.Keep(kNobody, "resp_1", {"n", "i"});
  EXPECT_EQ(store.Find(kAlice, "resp_1")->object, "a");
  EXPECT_EQ(store.Find(kNobody, "resp_1")->object, "n");
  EXPECT_EQ(store.Find(kBob, "resp_1"), nullptr);
  EXPECT_FALSE(store.Erase(kBob, "resp_1"));
  const std::shared_ptr<const Kept> held = store.Find(kAlice, "resp_1");
  EXPECT_TRUE(store.Erase(kAlice, "resp_1"));
  EXPECT_EQ(held->items, "i");
  EXPECT_EQ(store.Find(kAlice, "resp_1"), nullptr);
  EXPECT_EQ(store.counts().responses, 1);
  EXPECT_EQ(store.counts().dropped, 0);
}

TEST(ResponseStore, TheOneUnusedForLongestMakesRoom) {
  ResponseStore store({.responses_max = 2});
  store.Keep(kNobody, "1", {});
  store.Keep(kNobody, "2", {});
  EXPECT_NE(store.Find(kNobody, "1"), nullptr);
  store.Keep(kNobody, "3", {});
  EXPECT_EQ(store.Find(kNobody, "2"), nullptr);
  EXPECT_NE(store.Find(kNobody, "1"), nullptr);
  store.Keep(kNobody, "3", {"again", ""});
  EXPECT_EQ(store.Find(kNobody, "3")->object, "again");
  EXPECT_EQ(store.counts().responses, 2);
  EXPECT_EQ(store.counts().dropped, 1);
}

TEST(ResponseStore, WhoKeepsMostMakesRoom) {
  ResponseStore store({.responses_max = 10, .bytes_max = 10 * ResponseStore::kOverheadBytes});
  store.Keep(kBob, "bob", {"b", ""});
  for (int i = 0; i < 20; ++i) {
    store.Keep(kAlice, absl::StrCat(i), {std::string(300, 'x'), ""});
    EXPECT_LE(store.counts().bytes, 10 * ResponseStore::kOverheadBytes);
  }
  EXPECT_NE(store.Find(kBob, "bob"), nullptr);
  EXPECT_NE(store.Find(kAlice, "19"), nullptr);
  // A response larger than the bound evicts nothing.
  const int64_t before = store.counts().responses;
  store.Keep(kAlice, "large", {std::string(100000, 'x'), ""});
  EXPECT_EQ(store.Find(kAlice, "large"), nullptr);
  EXPECT_EQ(store.counts().responses, before);
}

TEST(ResponseStore, ZeroKeepsNothing) {
  ResponseStore store({.responses_max = 0});
  EXPECT_FALSE(store.on());
  store.Keep(kNobody, "1", {});
  EXPECT_EQ(store.Find(kNobody, "1"), nullptr);
}

TEST(ResponseStore, BoundsHoldWhateverIsAsked) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const ResponseStore::Options options = {.responses_max = 8, .bytes_max = 9000};
  ResponseStore store(options);
  for (int i = 0; i < 3000; ++i) {
    const std::string owner = absl::StrCat("tenant-", random() % 3);
    const std::string id = absl::StrCat(random() % 12);
    switch (random() % 4) {
      case 0:
        store.Find(owner, id);
        break;
      case 1:
        store.Erase(owner, id);
        EXPECT_EQ(store.Find(owner, id), nullptr);
        break;
      default:
        store.Keep(owner, id, {std::string(random() % 2000, 'x'), id});
        ASSERT_NE(store.Find(owner, id), nullptr);
        EXPECT_EQ(store.Find(owner, id)->items, id);
    }
    ASSERT_LE(store.counts().responses, options.responses_max);
    ASSERT_LE(store.counts().bytes, options.bytes_max);
    ASSERT_GE(store.counts().bytes, store.counts().responses * ResponseStore::kOverheadBytes);
  }
  for (int owner = 0; owner < 3; ++owner) {
    for (int id = 0; id < 12; ++id) store.Erase(absl::StrCat("tenant-", owner), absl::StrCat(id));
  }
  EXPECT_EQ(store.counts().responses, 0);
  EXPECT_EQ(store.counts().bytes, 0);
}

}  // namespace
}  // namespace tandem::router
