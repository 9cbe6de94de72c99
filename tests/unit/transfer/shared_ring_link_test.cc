// Goal: messages of a shared ring arrive whole and in order wherever they lie in it, a full ring
// says so, and nothing that the other end writes into the shared memory makes this end read or
// write beyond it.
#include "common/transfer/shared_ring_link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/runtime/random.h"

namespace tandem::transfer {
namespace {

constexpr LinkLimits kLimits = {.message_bytes_max = 1000, .ring_bytes = 4096};
constexpr size_t kMemoryBytes = 4096 + 2 * kLimits.ring_bytes;
constexpr size_t kRingControlBytes = 3 * 64;  // written, read, asleep

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string Text(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
absl::Status Send(MessageLink& link, const std::string& text) {
  const absl::Span<const std::byte> piece = Bytes(text);
  return link.Send({&piece, 1});
}

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    auto rings = NewRingMemory(kLimits);
    EXPECT_TRUE(rings.ok()) << rings.status();
    memory = *std::move(rings);
    first = *SharedRingLink::Create(OwnedDescriptor(ends[0]), memory, SharedRingLink::Side::kFirst,
                                    kLimits);
    second = *SharedRingLink::Create(OwnedDescriptor(ends[1]), memory,
                                     SharedRingLink::Side::kSecond, kLimits);
  }
  OwnedDescriptor memory;
  std::unique_ptr<SharedRingLink> first, second;
};

bool IsReadable(const MessageLink& link) {
  pollfd wait = {.fd = link.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&wait, 1, 0) == 1;
}

TEST(SharedRingLinkTest, MessagesOfAllSizesCrossTheRingsEndInBothDirections) {
  Pair pair;
  for (size_t size = 1; size <= kLimits.message_bytes_max; ++size) {
    const std::string there(size, static_cast<char>(size)), back(size, static_cast<char>(~size));
    ASSERT_TRUE(Send(*pair.first, there).ok()) << size;
    ASSERT_TRUE(Send(*pair.second, back).ok()) << size;
    const auto at_second = pair.second->Receive(), at_first = pair.first->Receive();
    ASSERT_TRUE(at_second.ok() && at_second->has_value()) << size;
    ASSERT_TRUE(at_first.ok() && at_first->has_value()) << size;
    ASSERT_EQ(Text(**at_second), there);
    ASSERT_EQ(Text(**at_first), back);
  }
  EXPECT_FALSE(pair.first->Receive()->has_value());
}

TEST(SharedRingLinkTest, PiecesArriveAsOneMessage) {
  Pair pair;
  const std::string a = "a head", b, c = " and its body";
  const std::vector<absl::Span<const std::byte>> pieces = {Bytes(a), Bytes(b), Bytes(c)};
  ASSERT_TRUE(pair.first->Send(pieces).ok());
  EXPECT_EQ(Text(**pair.second->Receive()), a + c);
}

TEST(SharedRingLinkTest, AFullRingRefusesAndTakesAgainWhatWasRead) {
  Pair pair;
  const std::string message(504, 'm');  // 512 bytes in the ring
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(Send(*pair.first, message).ok()) << i;
  EXPECT_EQ(Send(*pair.first, "x").code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(pair.second->Receive()->has_value());
  EXPECT_TRUE(Send(*pair.first, message).ok());
  EXPECT_EQ(Send(*pair.first, "x").code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Text(**pair.second->Receive()), message) << i;
}

TEST(SharedRingLinkTest, SizesOutsideTheLimitsAreRefused) {
  Pair pair;
  EXPECT_TRUE(Send(*pair.first, std::string(kLimits.message_bytes_max, 'm')).ok());
  EXPECT_EQ(Send(*pair.first, std::string(kLimits.message_bytes_max + 1, 'm')).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Send(*pair.first, "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(NewRingMemory({.message_bytes_max = 100, .ring_bytes = 1000}).ok());
  EXPECT_FALSE(NewRingMemory({.message_bytes_max = 513, .ring_bytes = 1024}).ok());
  const LinkLimits larger = {.message_bytes_max = 1000, .ring_bytes = 8192};
  EXPECT_EQ(
      SharedRingLink::Create(OwnedDescriptor(), pair.memory, SharedRingLink::Side::kFirst, larger)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(SharedRingLinkTest, MemoryThatTheOtherEndCouldShrinkIsRefused) {
  const OwnedDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kMemoryBytes), 0);
  EXPECT_EQ(
      SharedRingLink::Create(OwnedDescriptor(), unsealed, SharedRingLink::Side::kFirst, kLimits)
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(SharedRingLinkTest, OnlyASleepingEndIsWoken) {
  Pair pair;
  ASSERT_TRUE(Send(*pair.first, "nobody sleeps").ok());
  EXPECT_FALSE(IsReadable(*pair.second));
  EXPECT_FALSE(pair.second->PrepareSleep());  // a message is there
  ASSERT_TRUE(pair.second->Receive()->has_value());
  ASSERT_TRUE(pair.second->PrepareSleep());
  ASSERT_TRUE(Send(*pair.first, "wake").ok());
  ASSERT_TRUE(Send(*pair.first, "once").ok());
  EXPECT_TRUE(IsReadable(*pair.second));
  pair.second->EndSleep();
  EXPECT_TRUE(pair.second->CheckPeer().ok());
  EXPECT_FALSE(IsReadable(*pair.second));
  pair.first.reset();
  EXPECT_TRUE(IsReadable(*pair.second));
  EXPECT_EQ(pair.second->CheckPeer().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Text(**pair.second->Receive()), "wake");
}

// Writes numbers as a hostile peer could into the rings' positions and a message's length. The
// rings lie between pages of the test's own, so a copy beyond the mapping shows in a sanitizer or
// as a crash; what this end returns is checked here.
TEST(SharedRingLinkTest, NoNumberInTheSharedMemoryLeadsOutOfIt) {
  const uint64_t seed = NewSystemRandom()->Next();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const auto random = NewSeededRandom(seed);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    Pair pair;
    void* mapped =
        ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, pair.memory.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* base = static_cast<std::byte*>(mapped);
    for (int step = 0; step < 20; ++step) {
      (void)Send(*pair.first, std::string(1 + random->Below(900), 'm'));
      (void)Send(*pair.second, std::string(1 + random->Below(900), 'm'));
      const uint64_t values[] = {random->Next(), random->Below(8192),
                                 uint64_t{0} - random->Below(64), uint64_t{1} << random->Below(64)};
      const uint64_t value = values[random->Below(4)];
      const size_t places[] = {
          0, 64, 128, kRingControlBytes, kRingControlBytes + 64, 4096 + 8 * random->Below(1024)};
      std::memcpy(base + places[random->Below(6)], &value, sizeof value);
      for (SharedRingLink* link : {pair.first.get(), pair.second.get()}) {
        const auto got = link->Receive();
        if (!got.ok()) {
          ASSERT_EQ(got.status().code(), absl::StatusCode::kDataLoss);
          EXPECT_FALSE(Send(*link, "x").ok());  // a link that failed stays failed
          ++refused;
        } else if (got->has_value()) {
          ASSERT_GT((*got)->size(), 0u);
          ASSERT_LE((*got)->size(), kLimits.message_bytes_max);
        }
      }
    }
    ::munmap(mapped, kMemoryBytes);
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tandem::transfer
