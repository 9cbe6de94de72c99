// Goal: whatever the network and the cores do to KV transfers (drops, duplicates, reordering,
// damage, broken connections, cancels, raised epochs, closed leases), the promises that
// KvTransferWorld checks hold; the same when payloads travel by channels that fail, stand still or
// never open, and when connections are sealed. Seeds are printed.
#include <gtest/gtest.h>

#include "tests/testing/kv_transfer_world.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::ChannelFaults;
using ::tandem::testing::Faults;
using ::tandem::testing::KvTransferWorld;
using ::tandem::testing::KvTransferWorldLayers;

// Returns how many payloads came by channels.
int64_t RunSeeds(const Faults& faults, uint64_t first_seed,
                 const KvTransferWorldLayers& layers = nullptr) {
  int installed = 0, drained = 0, failed = 0;
  int64_t by_channel = 0, verified = 0;
  for (uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    KvTransferWorld world(NewSeededRandom(seed ^ 0x5EED), seed, faults, layers);
    for (int step = 0; step < 1500; ++step) world.Live();
    world.Settle();
    EXPECT_EQ(world.failure(), "");
    installed += world.installed;
    drained += world.drained;
    failed += world.exports_failed;
    by_channel += world.by_channel;
    verified += world.verified;
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("seeds %llu..%llu: installed=%d drained=%d exports_failed=%d by_channel=%lld\n",
              static_cast<unsigned long long>(first_seed),
              static_cast<unsigned long long>(first_seed + 39), installed, drained, failed,
              static_cast<long long>(by_channel));
  // The test would be empty if hardly anything got through, or hardly anything was disturbed.
  EXPECT_GT(installed, 400);
  EXPECT_GT(drained, 40);
  EXPECT_GT(verified, 40);
  return by_channel;
}

TEST(KvTransferRandomTest, SoundNetwork) { RunSeeds({.delay_steps_max = 0}, 1000); }
TEST(KvTransferRandomTest, Reordering) { RunSeeds({.delay_steps_max = 30}, 2000); }
TEST(KvTransferRandomTest, DropsAndDuplicates) {
  RunSeeds({.drop = 0.1, .duplicate = 0.1, .delay_steps_max = 10}, 3000);
}
TEST(KvTransferRandomTest, Damage) {
  RunSeeds({.damage_payload = 0.1, .damage_header = 0.05, .delay_steps_max = 10}, 4000);
}
constexpr Faults kEverything = {.drop = 0.05,
                                .duplicate = 0.1,
                                .damage_payload = 0.05,
                                .damage_header = 0.03,
                                .delay_steps_max = 60};
TEST(KvTransferRandomTest, Everything) { RunSeeds(kEverything, 5000); }

TEST(KvTransferRandomTest, SoundChannels) {
  const ChannelFaults faults = {.delay_steps_max = 4};
  EXPECT_GT(RunSeeds({.delay_steps_max = 0}, 6000, &faults), 10'000);
}
TEST(KvTransferRandomTest, ChannelsWithLateHeaders) {
  const ChannelFaults faults = {.delay_steps_max = 4};
  EXPECT_GT(RunSeeds({.duplicate = 0.1, .delay_steps_max = 12}, 7000, &faults), 1000);
}
TEST(KvTransferRandomTest, ChannelsThatFail) {
  const ChannelFaults faults = {
      .refuse = 0.1, .never = 0.1, .fail = 0.002, .stall = 0.002, .delay_steps_max = 6};
  EXPECT_GT(RunSeeds({.delay_steps_max = 4}, 8000, &faults), 1000);
}
TEST(KvTransferRandomTest, ChannelsAndEverything) {
  const ChannelFaults faults = {
      .refuse = 0.1, .never = 0.1, .fail = 0.001, .stall = 0.001, .delay_steps_max = 6};
  EXPECT_GT(RunSeeds(kEverything, 9000, &faults), 100);
}

// Connections are sealed: keys change every few frames, and there is room for few payloads.
class SealedRandomTest : public ::testing::TestWithParam<bool> {
 protected:
  static KvTransferWorldLayers Sealed() {
    KvTransferWorldLayers layers = nullptr;
    layers.sealed = SealedTransportOptions{.fleet_secret = "fleet",
                                           .encrypts = GetParam(),
                                           .limits = {.frames_max = 16},
                                           .agree_within = absl::Milliseconds(100),
                                           .sealed_bytes_max = 128 << 10};
    return layers;
  }
};
INSTANTIATE_TEST_SUITE_P(Encryption, SealedRandomTest, ::testing::Bool());

TEST_P(SealedRandomTest, SoundNetwork) { RunSeeds({.delay_steps_max = 0}, 10'000, Sealed()); }
TEST_P(SealedRandomTest, Reordering) { RunSeeds({.delay_steps_max = 30}, 11'000, Sealed()); }
TEST_P(SealedRandomTest, Damage) {
  RunSeeds({.damage_payload = 0.1, .damage_header = 0.05, .delay_steps_max = 10}, 12'000, Sealed());
}
TEST_P(SealedRandomTest, Everything) { RunSeeds(kEverything, 13'000, Sealed()); }

}  // namespace
}  // namespace tandem::transfer
