// Goal: no order of leases, epochs, pushes, cancels, closes, broken connections, network faults and
// frames of a hostile process breaks a promise of the KV transfer (KvTransferWorld lists them).
// Input: three bytes that choose the faults, then one byte a choice, in the order in which the
// choices come up.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/telemetry/log.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/testing/hostile_peer.h"

namespace tandem::transfer {
namespace {

constexpr int kStepsMax = 2000;  // a step may use no byte at all

void Run(const uint8_t* data, size_t size) {
  SetLogLevel(LogLevel::kError);  // the input consists of frames to reject
  if (size < 3) return;
  fuzz::Bytes bytes{data, size};
  const uint8_t faults_byte = data[bytes.at++];
  const uint8_t delay = data[bytes.at++];
  const uint8_t seed = data[bytes.at++];
  testing::Faults faults;
  if (faults_byte & 1) faults.drop = 0.05;
  if (faults_byte & 2) faults.duplicate = 0.1;
  if (faults_byte & 4) faults.damage_payload = 0.05;
  if (faults_byte & 8) faults.damage_header = 0.03;
  faults.delay_steps_max = delay % 64;
  const testing::ChannelFaults channel_faults = {
      .refuse = 0.1, .never = 0.1, .fail = 0.001, .stall = 0.001, .delay_steps_max = 6};
  testing::KvTransferWorld world(std::make_unique<fuzz::FuzzRandom>(bytes), seed, faults,
                                 (faults_byte & 16) != 0 ? &channel_faults : nullptr);
  testing::HostilePeer hostile(world.network(), std::make_unique<fuzz::FuzzRandom>(bytes),
                               (faults_byte & 32) != 0 ? "fleet" : nullptr);
  if (faults_byte & 64) {
    world.set_stranger([&](testing::KvTransferWorld& attacked) { hostile.Attack(attacked, 2); });
  }
  for (int step = 0; step < kStepsMax && !bytes.used_up(); ++step) world.Live();
  world.Settle();
  if (world.failure().empty()) return;
  std::fprintf(stderr, "%s\n", world.failure().c_str());
  std::abort();
}

}  // namespace
}  // namespace tandem::transfer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::transfer::Run(data, size);
  return 0;
}
