// Goal: NCCL's channels carry payloads unchanged between two GPUs, refuse ids that are malformed,
// and say why a host or build has none.
#include <cstring>
#include <functional>
#include <random>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/device.h"
#include "kernels/api/pair_channel.h"
#include "tests/testing/status_matchers.h"

namespace tandem::kernels {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSlots = 3;
constexpr size_t kSlotBytes = 1 << 20;

// Calls Progress of both until `done`. False: a minute passed, or one failed.
bool MoveUntil(PairChannel& a, PairChannel& b, const std::function<bool()>& done) {
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (!done() && absl::Now() < end) {
    if (a.Progress() == PairChannel::State::kFailed) return false;
    if (b.Progress() == PairChannel::State::kFailed) return false;
  }
  return done();
}

TEST(NcclChannels, CarryPayloadsBetweenTwoGpus) {
  if (CountCudaDevices() < 2) GTEST_SKIP() << "needs two GPUs: " << DescribeCuda();
  ASSERT_OK_AND_ASSIGN(const auto senders,
                       OpenNcclChannels(0, kSlots, kSlotBytes, SlotMemory::kHost));
  ASSERT_OK_AND_ASSIGN(const auto receivers,
                       OpenNcclChannels(1, kSlots, kSlotBytes, SlotMemory::kHost));
  ASSERT_OK_AND_ASSIGN(const std::string id, senders->NewId());
  ASSERT_OK_AND_ASSIGN(const auto sender, senders->Open(id, PairChannels::Side::kSender));
  ASSERT_OK_AND_ASSIGN(const auto receiver, receivers->Open(id, PairChannels::Side::kReceiver));
  ASSERT_TRUE(MoveUntil(*sender, *receiver,
                        [&] {
                          return sender->Progress() == PairChannel::State::kOpen &&
                                 receiver->Progress() == PairChannel::State::kOpen;
                        }))
      << sender->status() << receiver->status();
  std::mt19937_64 random(std::random_device{}());
  for (int round = 0; round < 20; ++round) {
    size_t bytes[kSlots];
    for (int slot = 0; slot < kSlots; ++slot) {
      bytes[slot] = 1 + random() % kSlotBytes;
      for (std::byte& b : sender->slot(slot)) b = static_cast<std::byte>(random());
      sender->Start(slot, bytes[slot]);
      receiver->Start(slot, bytes[slot]);
    }
    ASSERT_TRUE(MoveUntil(*sender, *receiver,
                          [&] {
                            for (int slot = 0; slot < kSlots; ++slot) {
                              if (!sender->idle(slot) || !receiver->idle(slot)) return false;
                            }
                            return true;
                          }))
        << sender->status() << receiver->status();
    for (int slot = 0; slot < kSlots; ++slot) {
      EXPECT_EQ(std::memcmp(sender->slot(slot).data(), receiver->slot(slot).data(), bytes[slot]),
                0);
    }
  }
}

TEST(NcclChannels, RefuseAMalformedId) {
  if (CountCudaDevices() < 1) GTEST_SKIP() << "needs a GPU: " << DescribeCuda();
  ASSERT_OK_AND_ASSIGN(const auto channels,
                       OpenNcclChannels(0, kSlots, kSlotBytes, SlotMemory::kHost));
  const auto channel = channels->Open("short", PairChannels::Side::kReceiver);
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(channel.status().message()), HasSubstr("5 bytes, expected 128"));
}

TEST(NcclChannels, SayWhyThereAreNone) {
  if (CountCudaDevices() > 0) GTEST_SKIP() << "this host has a GPU";
  const absl::Status status = OpenNcclChannels(0, kSlots, kSlotBytes, SlotMemory::kHost).status();
  EXPECT_THAT(std::string(status.message()),
              AnyOf(HasSubstr("NCCL needs CUDA device 0"), HasSubstr("this build has no NCCL")));
}

}  // namespace
}  // namespace tandem::kernels
