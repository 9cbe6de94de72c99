// Goal: a hostile process on the KV network disturbs no node. One without the fleet's secret
// changes nothing at all: all that happens happens at the same moments as without it, and it is
// never answered. One with the secret, a compromised or confused node, may cost an epoch, but never
// a byte, a block or a lease; floods are answered within a bound. Seeds are printed.
#include "tests/testing/hostile_peer.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::transfer {
namespace {

using ::tandem::testing::Faults;
using ::tandem::testing::HostilePeer;
using ::tandem::testing::KvTransferWorld;

uint64_t FreshSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("first seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

struct Lived {
  uint64_t history = 0;
  int installed = 0, leases_failed = 0;
  int64_t sent = 0, answers = 0;
};

// `frames`: that a hostile process sends a step at most; 0 for none. `secret`: as HostilePeer.
Lived Live(uint64_t seed, const Faults& faults, uint64_t frames, const char* secret) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  KvTransferWorld world(NewSeededRandom(seed), seed, faults, nullptr);
  HostilePeer hostile(world.network(), NewSeededRandom(seed ^ 0xBAD), secret);
  world.set_stranger([&](KvTransferWorld& attacked) { hostile.Attack(attacked, frames); });
  for (int step = 0; step < 800; ++step) world.Live();
  world.Settle();
  EXPECT_EQ(world.failure(), "");
  return {.history = world.history,
          .installed = world.installed,
          .leases_failed = world.leases_failed,
          .sent = hostile.sent,
          .answers = hostile.answers};
}

TEST(HostilePeerTest, WithoutTheSecretNothingHappensOtherwise) {
  const uint64_t first = FreshSeed();
  for (uint64_t seed = first; seed < first + 20 && !::testing::Test::HasFailure(); ++seed) {
    const Lived alone = Live(seed, {}, 0, nullptr);
    const Lived attacked = Live(seed, {}, 20, nullptr);
    EXPECT_EQ(attacked.history, alone.history);
    EXPECT_GT(attacked.installed, 20);
    EXPECT_GT(attacked.sent, 4000);
    EXPECT_EQ(attacked.answers, 0);
  }
}

TEST(HostilePeerTest, WithTheSecretItCostsEpochsAtMost) {
  const uint64_t first = FreshSeed();
  Lived all, alone;
  for (uint64_t seed = first; seed < first + 40 && !::testing::Test::HasFailure(); ++seed) {
    const Lived attacked = Live(seed, {.delay_steps_max = 6}, 16, "fleet");
    const Lived peaceful = Live(seed, {.delay_steps_max = 6}, 0, nullptr);
    all.installed += attacked.installed;
    all.leases_failed += attacked.leases_failed;
    alone.installed += peaceful.installed;
    alone.leases_failed += peaceful.leases_failed;
    EXPECT_GT(attacked.answers, 100) << "it was never taken seriously";
    EXPECT_LE(attacked.answers, attacked.sent) << "answers outnumber what was asked";
  }
  std::printf("installed %d, epochs failed %d; undisturbed %d, %d\n", all.installed,
              all.leases_failed, alone.installed, alone.leases_failed);
  EXPECT_GT(all.leases_failed, alone.leases_failed) << "it was harmless";
  EXPECT_GT(all.installed, alone.installed / 2) << "honest KV transfers do not go on";
}

TEST(HostilePeerTest, BesideEveryOtherFault) {
  const Faults faults = {.drop = 0.05,
                         .duplicate = 0.1,
                         .damage_payload = 0.05,
                         .damage_header = 0.03,
                         .delay_steps_max = 60};
  const uint64_t first = FreshSeed();
  int installed = 0;
  for (uint64_t seed = first; seed < first + 40 && !::testing::Test::HasFailure(); ++seed) {
    installed += Live(seed, faults, 6, seed % 2 == 0 ? "fleet" : nullptr).installed;
  }
  EXPECT_GT(installed, 100);
}

}  // namespace
}  // namespace tandem::transfer
