// Goal: a process that is killed anywhere in the middle of a transfer, over any transport, ends no
// other process: the one that is left ends the transfer, holds nothing of it, and serves the next.
// Seeds are printed. TANDEM_KILLS=1000 kills as many processes in each test as it says; by default
// some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/transfer/peer_node.h"

namespace tandem::transfer {
namespace {

constexpr int kKills = 6;
constexpr int kLayers = 8, kBlocks = 64;
constexpr int64_t kLayerBlockBytes = 256 << 10;
constexpr int64_t kBytes = kLayers * kBlocks * kLayerBlockBytes;
// A kill is noticed well before this; a lease's or an export's own deadline comes after it.
constexpr absl::Duration kNoticed = absl::Seconds(20);
constexpr int kDeadlineMs = 60'000;
// After the first kills, a process that keeps something of each would have many more.
constexpr int kWarmUp = 2;
constexpr size_t kDescriptorsMore = 16;

int Kills() {
  int kills = kKills;
  if (const char* text = std::getenv("TANDEM_KILLS"); text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &kills) && kills > 0) << "TANDEM_KILLS=" << text;
  }
  return kills;
}

size_t OpenDescriptors(const Node& node) {
  const std::filesystem::directory_iterator open(absl::StrCat("/proc/", node.process.pid(), "/fd")),
      end;
  return static_cast<size_t>(std::distance(open, end));
}

class KillTest : public ::testing::TestWithParam<std::string> {
 protected:
  KillTest() : seed_(std::random_device()()), random_(seed_) { std::printf("seed %u\n", seed_); }
  std::unique_ptr<Node> NewNode(int incarnation) {
    return std::make_unique<Node>(GetParam(), kLayers, kLayerBlockBytes, kBlocks, incarnation);
  }
  // Starts a transfer and returns when the receiver has verified a random part of it, from nothing
  // to nearly all.
  void BeginTransfer(Node& sender, Node& receiver, int round) {
    if (GetParam() == "mapped") AwaitMapped(sender, receiver, 1'000'000 + 1000 * round);
    const KvTransfer kv_transfer{.id = round + 1, .count = kBlocks, .deadline_ms = kDeadlineMs};
    OpenLease(receiver, kv_transfer);
    const int64_t before = BytesReceived(receiver);
    const int64_t wanted = std::uniform_int_distribution<int64_t>(0, kBytes * 9 / 10)(random_);
    Export(sender, receiver, kv_transfer);
    if (wanted > 0) AwaitData(receiver, before + wanted);
  }
  void CheckDescriptors(const Node& survivor, int round) {
    const size_t open = OpenDescriptors(survivor);
    if (round <= kWarmUp) baseline_ = std::max(baseline_, open);
    EXPECT_LE(open, baseline_ + kDescriptorsMore) << "round " << round;
  }

  const unsigned seed_;
  std::mt19937 random_;
  size_t baseline_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Transports, KillTest, ::testing::Values("shm", "tcp", "mapped"),
                         [](const auto& info) { return info.param; });

TEST_P(KillTest, KilledSendersDoNotHurtTheReceiver) {
  const std::unique_ptr<Node> receiver = NewNode(11);
  const int kills = Kills();
  for (int round = 0; round < kills && !HasFailure(); ++round) {
    const std::unique_ptr<Node> sender = NewNode(100 + round);
    BeginTransfer(*sender, *receiver, round);
    sender->process.Kill();
    // The kill may come too late: then the lease is installed.
    const std::string end = receiver->process.ReadLine("", kNoticed);
    ASSERT_NE(end, "") << "round " << round;
    receiver->process.Write(absl::StrCat("close ", round + 1));
    ASSERT_NE(receiver->Wait(absl::StrCat("drained ", round + 1)), "") << "round " << round;
    ASSERT_TRUE(AwaitIdle(*receiver)) << "round " << round;
    CheckDescriptors(*receiver, round);
  }
  const std::unique_ptr<Node> honest = NewNode(12);
  honest->Fill(0, kBlocks, 5);
  const KvTransfer last{.id = 5'000'000, .count = kBlocks, .deadline_ms = kDeadlineMs};
  OpenLease(*receiver, last);
  Export(*honest, *receiver, last);
  ASSERT_NE(receiver->Wait("installed 5000000"), "");
  EXPECT_EQ(receiver->Check(0, kBlocks, 5), "check equal");
  EXPECT_EQ(receiver->process.Finish(), 0);
}

TEST_P(KillTest, KilledReceiversDoNotHurtTheSender) {
  const std::unique_ptr<Node> sender = NewNode(11);
  sender->Fill(0, kBlocks, 5);
  const int kills = Kills();
  for (int round = 0; round < kills && !HasFailure(); ++round) {
    const std::unique_ptr<Node> receiver = NewNode(100 + round);
    BeginTransfer(*sender, *receiver, round);
    receiver->process.Kill();
    ASSERT_NE(sender->process.ReadLine("", kNoticed), "") << "round " << round;
    ASSERT_TRUE(AwaitIdle(*sender)) << "round " << round;
    CheckDescriptors(*sender, round);
  }
  const std::unique_ptr<Node> honest = NewNode(12);
  const KvTransfer last{.id = 5'000'000, .count = kBlocks, .deadline_ms = kDeadlineMs};
  OpenLease(*honest, last);
  Export(*sender, *honest, last);
  ASSERT_NE(honest->Wait("installed 5000000"), "");
  EXPECT_EQ(honest->Check(0, kBlocks, 5), "check equal");
  EXPECT_EQ(sender->process.Finish(), 0);
}

}  // namespace
}  // namespace tandem::transfer
