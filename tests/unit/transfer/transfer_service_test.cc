// Goal: two services with threads of their own hand blocks over in one process, bit for bit, and a
// full command queue says so.
#include "common/transfer/transfer_service.h"

#include <gtest/gtest.h>

#include <cstring>

#include "absl/synchronization/notification.h"
#include "common/runtime/clock.h"
#include "common/transfer/in_process_transport.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

TEST(TransferServiceTest, MovesBlocksBetweenThreads) {
  const kv::BlockLayout layout{.num_layers = 3, .block_tokens = 16, .layer_block_bytes = 4096};
  ASSERT_OK_AND_ASSIGN(auto source, kv::BlockArena::Create(layout, 8));
  ASSERT_OK_AND_ASSIGN(auto target, kv::BlockArena::Create(layout, 8));
  for (int layer = 0; layer < 3; ++layer) {
    std::memset(source->LayerRegion(layer), 16 + layer, 8 * 4096);
  }
  InProcessNetwork network;
  absl::Notification installed, done;
  ExportDone ended;
  TransferServiceOptions receiving, sending;
  receiving.kv_transfer.incarnation = Incarnation(1);
  sending.kv_transfer.incarnation = Incarnation(2);
  ASSERT_OK_AND_ASSIGN(
      auto receiver,
      TransferService::Create(receiving, NewInProcessTransport(network), *target,
                              [&](TransferEvent event) {
                                ASSERT_TRUE(std::holds_alternative<LeaseInstalled>(event));
                                installed.Notify();
                              }));
  ASSERT_OK_AND_ASSIGN(
      auto sender, TransferService::Create(sending, NewInProcessTransport(network), *source,
                                           [&](TransferEvent event) {
                                             ASSERT_TRUE(std::holds_alternative<ExportDone>(event));
                                             ended = std::get<ExportDone>(event);
                                             done.Notify();
                                           }));
  const absl::Time deadline = RealClock().Now() + absl::Seconds(30);
  ASSERT_OK(
      receiver->Submit(OpenLease{LeaseId(1), Epoch(1), 0, {BlockId(4), BlockId(2)}, deadline}));
  ASSERT_OK(sender->Submit(
      OpenExport{ExportId(1),
                 PeerAddress{NodeId("r"), Incarnation(1), receiver->address(), "host"},
                 LeaseId(1),
                 Epoch(1),
                 0,
                 {BlockId(0), BlockId(1)},
                 deadline}));
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_OK(sender->Submit(PushRange{ExportId(1), 0, 2, layer, 1}));
  }
  ASSERT_OK(sender->Submit(FinishExport{ExportId(1), {}}));
  ASSERT_TRUE(installed.WaitForNotificationWithTimeout(absl::Seconds(30)));
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_GT(ended.processor_time, absl::ZeroDuration()) << "the thread's own work is measured";
  EXPECT_LT(ended.processor_time, absl::Seconds(30));
  for (int layer = 0; layer < 3; ++layer) {
    for (const int block : {4, 2}) {
      for (const std::byte byte : target->Block(layer, BlockId(block))) {
        ASSERT_EQ(static_cast<int>(byte), 16 + layer);
      }
    }
  }
  // What arrived is marked once, for engines that keep KV elsewhere; nothing else is.
  for (int block = 0; block < 8; ++block) {
    EXPECT_EQ(target->TakeArrived(BlockId(block)), block == 4 || block == 2) << block;
    EXPECT_FALSE(target->TakeArrived(BlockId(block)));
    EXPECT_FALSE(source->TakeArrived(BlockId(block)));
  }
}

TEST(TransferServiceTest, RefusesOptionsThatCannotWork) {
  ASSERT_OK_AND_ASSIGN(auto arena, kv::BlockArena::Create({1, 16, 64}, 1));
  InProcessNetwork network;
  TransferServiceOptions options;
  options.kv_transfer.frame_bytes_max = 1;
  EXPECT_THAT(
      TransferService::Create(options, NewInProcessTransport(network), *arena,
                              [](TransferEvent) {}),
      testing::StatusIs(absl::StatusCode::kInvalidArgument, ::testing::HasSubstr("frame sizes")));
}

TEST(InProcessTransportTest, ConnectingTwiceGivesOnePeerAndUnknownAddressesAreRefused) {
  InProcessNetwork network;
  const auto a = NewInProcessTransport(network), b = NewInProcessTransport(network);
  PeerAddress address{NodeId("b"), Incarnation(1), b->address(), "host"};
  ASSERT_OK_AND_ASSIGN(const PeerId first, a->Connect(address));
  ASSERT_OK_AND_ASSIGN(const PeerId second, a->Connect(address));
  EXPECT_EQ(first, second);
  address.transport_address = "elsewhere";
  EXPECT_THAT(a->Connect(address), testing::StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
}

}  // namespace
}  // namespace tandem::transfer
