// Goal: KV transfers whose blocks lie in device memory keep all the promises that KvTransferWorld
// checks, as sender, receiver or both, beside peers whose blocks lie in host memory: over a network
// that reaches the device's memory, one that does not, and channels; with damaged copies, lost
// channels and fewer slots than payloads. Every slot comes back. Where network and channels reach
// the device, no byte of a payload passes the host. Seeds are printed.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/testing/emulated_memory.h"
#include "tests/testing/kv_transfer_world.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::ChannelFaults;
using ::tandem::testing::EmulatedMemory;
using ::tandem::testing::Faults;
using ::tandem::testing::KvTransferMemory;
using ::tandem::testing::KvTransferSide;
using ::tandem::testing::KvTransferWorld;
using ::tandem::testing::NewDeviceMemory;

enum class Memory { kHost, kStaged, kReached };

struct Scenario {
  Memory sides[3];
  Faults faults;
  const ChannelFaults* channels = nullptr;
  int send_slots = 3, receive_slots = 4;
  double damaged_copies = 0;  // of steps: the next large copy of one device
};

struct Outcome {
  int installed = 0;
  int64_t by_channel = 0, spilled = 0, frames = 0;
  kernels::emulated::DeviceCalls calls;  // of all devices
};

class DeviceKvTransferTest : public ::testing::Test {
 protected:
  static constexpr int kWorlds = 4;

  void RunWorld(const Scenario& scenario, uint64_t seed, Outcome& outcome) {
    std::vector<std::shared_ptr<EmulatedMemory>> devices;
    std::vector<std::shared_ptr<DevicePayloads>> payloads;
    const auto new_memory = [&](Incarnation side, kv::BlockArena& arena) -> KvTransferMemory {
      const Memory kind = scenario.sides[side.value() - 100];
      if (kind == Memory::kHost) return {};
      devices.push_back(std::make_shared<EmulatedMemory>(seed + side.value(), arena));
      DevicePayloadOptions options;
      options.payload_bytes_max = 6 * KvTransferSide::kCellBytes;
      options.send_slots = scenario.send_slots;
      options.receive_slots = scenario.receive_slots;
      payloads.push_back(
          NewDeviceMemory(devices.back(), arena, options, kind == Memory::kStaged).payloads);
      return {devices.back(), payloads.back(), devices.back()->blocks.regions,
              kind == Memory::kStaged};
    };
    KvTransferWorld world(NewSeededRandom(seed ^ 0x5EED), seed, scenario.faults, scenario.channels,
                          new_memory);
    const auto damage = NewSeededRandom(seed ^ 0xDA3A6E);
    world.set_stranger([&](KvTransferWorld&) {
      if (static_cast<double>(damage->Below(1'000'000)) >= scenario.damaged_copies * 1e6) return;
      kernels::emulated::DamageCopies(*devices[damage->Below(devices.size())]->device, 1,
                                      KvTransferSide::kCellBytes);
    });
    for (int step = 0; step < 600; ++step) world.Live();
    for (const auto& memory : devices) kernels::emulated::DamageCopies(*memory->device, 0, 0);
    world.Settle();
    EXPECT_EQ(world.failure(), "");
    outcome.installed += world.installed;
    outcome.by_channel += world.by_channel;
    for (const auto& side : world.sides()) {
      outcome.frames += side->endpoint->counters().frames_sent;
    }
    for (const auto& store : payloads) outcome.spilled += store->spilled();
    for (const auto& memory : devices) {
      const auto calls = kernels::emulated::CallsOf(*memory->device);
      outcome.calls.kernels += calls.kernels;
      outcome.calls.bytes_in += calls.bytes_in;
      outcome.calls.bytes_out += calls.bytes_out;
    }
  }

  Outcome Run(const Scenario& scenario) {
    const uint64_t first_seed = std::random_device()();
    Outcome outcome;
    for (uint64_t seed = first_seed; seed < first_seed + kWorlds; ++seed) {
      SCOPED_TRACE(absl::StrCat("seed ", seed));
      RunWorld(scenario, seed, outcome);
      if (HasFailure()) break;
    }
    std::printf("seeds from %llu: installed=%d by_channel=%lld spilled=%lld kernels=%lld\n",
                static_cast<unsigned long long>(first_seed), outcome.installed,
                static_cast<long long>(outcome.by_channel), static_cast<long long>(outcome.spilled),
                static_cast<long long>(outcome.calls.kernels));
    // The test would be empty if hardly anything got through.
    EXPECT_GT(outcome.installed, 20);
    EXPECT_GT(outcome.calls.kernels, 200);
    return outcome;
  }
};

constexpr Memory kReached[3] = {Memory::kReached, Memory::kReached, Memory::kReached};
constexpr Faults kDelays = {.delay_steps_max = 8};
constexpr Faults kEverything = {.drop = 0.05,
                                .duplicate = 0.1,
                                .damage_payload = 0.05,
                                .damage_header = 0.03,
                                .delay_steps_max = 30};
constexpr ChannelFaults kSoundChannels = {.delay_steps_max = 4};
constexpr ChannelFaults kFailingChannels = {
    .refuse = 0.1, .never = 0.1, .fail = 0.002, .stall = 0.002, .delay_steps_max = 6};

Scenario With(const Memory (&sides)[3], const Faults& faults,
              const ChannelFaults* channels = nullptr) {
  Scenario scenario;
  std::copy(std::begin(sides), std::end(sides), std::begin(scenario.sides));
  scenario.faults = faults;
  scenario.channels = channels;
  return scenario;
}

TEST_F(DeviceKvTransferTest, PayloadsDoNotPassTheHost) {
  for (const ChannelFaults* channels :
       {static_cast<const ChannelFaults*>(nullptr), &kSoundChannels}) {
    Scenario scenario = With(kReached, kDelays, channels);
    scenario.send_slots = scenario.receive_slots = 200;
    const Outcome outcome = Run(scenario);
    EXPECT_EQ(outcome.spilled, 0);
    EXPECT_EQ(outcome.calls.bytes_in, 0);
    // Checksums alone come out: one for each payload, at either end.
    EXPECT_GT(outcome.calls.bytes_out, 0);
    EXPECT_LE(outcome.calls.bytes_out, outcome.frames * 2 * int64_t{sizeof(uint64_t)});
    if (channels != nullptr) {
      EXPECT_GT(outcome.by_channel, 200);
    }
  }
}

TEST_F(DeviceKvTransferTest, FewSlotsHoldNothingUpForGood) {
  Scenario scenario = With(kReached, {.delay_steps_max = 30});
  scenario.send_slots = 1;
  scenario.receive_slots = 1;
  EXPECT_GT(Run(scenario).spilled, 0);
}

TEST_F(DeviceKvTransferTest, MixedPeersOnABadNetwork) {
  Run(With({Memory::kHost, Memory::kStaged, Memory::kReached}, kEverything));
}

TEST_F(DeviceKvTransferTest, MixedPeersOnChannelsThatFail) {
  const Outcome outcome =
      Run(With({Memory::kHost, Memory::kStaged, Memory::kReached}, kDelays, &kFailingChannels));
  EXPECT_GT(outcome.by_channel, 50);
}

TEST_F(DeviceKvTransferTest, EverythingAtOnce) {
  Run(With(kReached, kEverything, &kFailingChannels));
}

TEST_F(DeviceKvTransferTest, DamagedCopiesAreFoundAndMadeGood) {
  Scenario scenario = With({Memory::kStaged, Memory::kStaged, Memory::kHost}, kDelays);
  scenario.damaged_copies = 0.05;
  Run(scenario);
}

}  // namespace
}  // namespace tandem::transfer
