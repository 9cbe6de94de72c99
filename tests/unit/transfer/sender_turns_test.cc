// Goal: exports to one peer take turns, a frame at a time, and share one bound on bytes in flight;
// exports to other peers do not wait for them, also where payloads need places and there are few;
// one that ends or is cancelled gives its turn up, and every export ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/transfer/frame_auth.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "common/transfer/payload_store.h"

namespace tandem::transfer {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kCellBytes = 64;
constexpr int kBlocks = 4;
const Incarnation kSender(7), kReceiver(8);

// Payloads that need one of a few places.
class FewPlaces final : public PayloadStore {
 public:
  explicit FewPlaces(int64_t places) : room_(places) {}
  absl::StatusOr<std::optional<Outgoing>> Take(const PayloadCells&) override {
    if (room_ == 0) return std::optional<Outgoing>();
    Outgoing outgoing;
    outgoing.hold = std::make_unique<Hold>(room_);
    return std::optional<Outgoing>(std::move(outgoing));
  }
  int64_t room() const override { return room_; }
  absl::StatusOr<Landing> Reserve(const PayloadCells&) override {
    return absl::UnimplementedError("nothing is received");
  }
  absl::Status Install(const PayloadCells&, const Landing&, uint64_t, const std::string&,
                       const std::optional<uint64_t>&) override {
    return absl::UnimplementedError("nothing is received");
  }

 private:
  struct Hold final : PayloadHold {
    explicit Hold(int64_t& places) : room(places) { --room; }
    ~Hold() override { ++room; }
    int64_t& room;
  };
  int64_t room_;
};

// Records what is sent. A peer's address is its number.
class RecordingTransport final : public KvTransport {
 public:
  void SetListener(Listener*) override {}
  const std::string& address() const override { return address_; }
  absl::StatusOr<PeerId> Connect(const PeerAddress& peer) override {
    return PeerId(std::stoull(peer.transport_address));
  }
  void Disconnect(PeerId) override { ++disconnected; }
  void Send(PeerId peer, const v1::KvFrame& frame, GatherList,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    if (!frame.has_data()) return done(absl::OkStatus());
    order.push_back(frame.lease_id());
    more_follows.push_back(frame.data().more_follows());
    dones.emplace_back(peer, std::move(done));
  }
  int64_t BytesAheadMax(PeerId) const override { return bytes_ahead_max; }
  PayloadStore* payloads() override { return places.get(); }
  std::string TransportName(PeerId) const override { return "test"; }
  bool Progress() override { return false; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  // Completes the oldest send.
  void CompleteOne(const absl::Status& status = absl::OkStatus()) {
    auto done = std::move(dones.front().second);
    dones.erase(dones.begin());
    done(status);
  }

  std::unique_ptr<FewPlaces> places;  // null: payloads lie in the arena
  int disconnected = 0;
  int64_t bytes_ahead_max = 1 << 20;
  std::vector<uint64_t> order;     // leases of data frames
  std::vector<bool> more_follows;  // what they said
  std::vector<std::pair<PeerId, absl::AnyInvocable<void(const absl::Status&)>>> dones;

 private:
  std::string address_ = "test";
};

class SenderTurnsTest : public ::testing::Test {
 protected:
  SenderTurnsTest() {
    arena_ = *kv::BlockArena::Create(
        {.num_layers = 1, .block_tokens = 16, .layer_block_bytes = kCellBytes}, kBlocks);
    KvTransferOptions options;
    options.incarnation = kSender;
    options.frame_bytes_min = options.frame_bytes_max = kCellBytes;  // a frame for each block
    options.peer_bytes_in_flight_max = 2 * kCellBytes;
    endpoint_ = KvTransferEndpoint::Create(options, *arena_, transport_);
  }
  // Bounds payloads by places, and not by the bytes in flight to a peer.
  void LimitPlaces(int64_t places) {
    transport_.places = std::make_unique<FewPlaces>(places);
    KvTransferOptions options;
    options.incarnation = kSender;
    options.frame_bytes_min = options.frame_bytes_max = kCellBytes;
    endpoint_ = KvTransferEndpoint::Create(options, *arena_, transport_);
  }
  // An export of all blocks into the lease of the same number.
  void Export(uint64_t number, int peer) {
    OpenExport open;
    open.export_id = ExportId(number);
    open.peer = {NodeId("d"), kReceiver, std::to_string(peer), "h"};
    open.lease = LeaseId(number);
    open.epoch = Epoch(1);
    for (int i = 0; i < kBlocks; ++i) open.blocks.push_back(BlockId(i));
    open.deadline = now_ + absl::Seconds(10);
    endpoint_->Handle(open, now_);
    endpoint_->Handle(PushRange{ExportId(number), 0, kBlocks, 0, 1}, now_);
    endpoint_->Handle(FinishExport{ExportId(number), {}}, now_);
  }
  void Acknowledge(uint64_t number, int peer) {
    v1::KvFrame ack;
    ack.set_sender_incarnation(kReceiver.value());
    ack.set_receiver_incarnation(kSender.value());
    ack.set_lease_id(number);
    ack.set_epoch(1);
    ack.mutable_ack();
    FrameAuth("").Sign(ack);
    endpoint_->OnFrame(PeerId(static_cast<uint64_t>(peer)), ack, 0, 0);
  }
  void Nack(uint64_t number, int peer, uint32_t first_ordinal, uint32_t ordinal_count) {
    v1::KvFrame nack;
    nack.set_sender_incarnation(kReceiver.value());
    nack.set_receiver_incarnation(kSender.value());
    nack.set_lease_id(number);
    nack.set_epoch(1);
    v1::KvRange& range = *nack.mutable_nack()->add_missing();
    range.set_first_ordinal(first_ordinal);
    range.set_ordinal_count(ordinal_count);
    range.set_layer_count(1);
    FrameAuth("").Sign(nack);
    endpoint_->OnFrame(PeerId(static_cast<uint64_t>(peer)), nack, 0, 0);
  }
  void CompleteAll() {
    while (!transport_.dones.empty()) transport_.CompleteOne();
  }

  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<kv::BlockArena> arena_;
  RecordingTransport transport_;
  std::unique_ptr<KvTransferEndpoint> endpoint_;
};

TEST_F(SenderTurnsTest, ExportsToOnePeerTakeTurns) {
  Export(1, 1);
  Export(2, 1);
  Export(3, 1);
  EXPECT_THAT(transport_.order, ElementsAre(1, 1)) << "the peer's bound was filled by the first";
  CompleteAll();
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 1, 2, 3, 1, 2, 3, 2, 3, 2, 3));
  for (const uint64_t number : {1, 2, 3}) Acknowledge(number, 1);
  EXPECT_EQ(endpoint_->TakeEvents().size(), 3u);
  EXPECT_EQ(endpoint_->counters().exports_open, 0);
}

// A receiver that asks again and again for what waits for room: nothing is queued twice, and it is
// no reason to end the export.
TEST_F(SenderTurnsTest, WhatWaitsForItsTurnIsNotQueuedAgain) {
  Export(1, 1);
  ASSERT_THAT(transport_.order, ElementsAre(1, 1)) << "two of four blocks wait";
  for (int i = 0; i < 65; ++i) Nack(1, 1, /*first_ordinal=*/2, /*ordinal_count=*/2);
  Nack(1, 1, /*first_ordinal=*/1, /*ordinal_count=*/3);  // the second block was sent
  CompleteAll();
  EXPECT_EQ(transport_.order.size(), kBlocks + 1);
  Acknowledge(1, 1);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ExportDone>(events[0]));
}

TEST_F(SenderTurnsTest, OneCancelledExportOnASlowLinkDropsNothing) {
  Export(1, 1);
  Export(2, 1);
  endpoint_->Handle(CancelExport{ExportId(1), "test"}, now_);
  // A payload ends every 0.9 s; the last of the cancelled export is the second.
  while (!transport_.dones.empty()) {
    now_ += absl::Milliseconds(900);
    endpoint_->Tick(now_);
    transport_.CompleteOne();
  }
  EXPECT_EQ(transport_.disconnected, 0);
  Acknowledge(2, 1);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<ExportFailed>(events[0]));
  EXPECT_TRUE(std::holds_alternative<ExportDone>(events[1]));
}

TEST_F(SenderTurnsTest, APeerThatTakesNothingIsDropped) {
  Export(1, 1);
  endpoint_->Handle(CancelExport{ExportId(1), "test"}, now_);
  endpoint_->Tick(now_ + absl::Milliseconds(900));
  EXPECT_EQ(transport_.disconnected, 0);
  endpoint_->Tick(now_ + absl::Milliseconds(1100));
  EXPECT_EQ(transport_.disconnected, 1);
}

// Blocks that are pushed part by part leave pauses. The last stretch without one tells the link's
// rate: its bytes, until they are acknowledged.
TEST_F(SenderTurnsTest, TheLastStretchBeginsAfterTheLastPause) {
  OpenExport open;
  open.export_id = ExportId(1);
  open.peer = {NodeId("d"), kReceiver, "1", "h"};
  open.lease = LeaseId(1);
  open.epoch = Epoch(1);
  for (int i = 0; i < kBlocks; ++i) open.blocks.push_back(BlockId(i));
  open.deadline = now_ + absl::Seconds(10);
  const auto push = [&](int first, int count) {
    now_ += absl::Milliseconds(100);  // a step
    endpoint_->Handle(PushRange{ExportId(1), first, count, 0, 1}, now_);
  };
  endpoint_->Handle(open, now_);
  push(0, 1);
  CompleteAll();
  push(1, 1);  // after a pause
  push(2, 2);  // without one: the second block is on its way
  endpoint_->Handle(FinishExport{ExportId(1), {}}, now_);
  now_ += absl::Milliseconds(30);
  endpoint_->Tick(now_);
  CompleteAll();
  Acknowledge(1, 1);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  const auto& done = std::get<ExportDone>(events[0]);
  EXPECT_EQ(done.bytes_sent, kBlocks * kCellBytes);
  EXPECT_EQ(done.transfer_time, absl::Milliseconds(230));
  EXPECT_EQ(done.last_stretch, absl::Milliseconds(130));
  EXPECT_EQ(done.last_stretch_bytes, 3 * kCellBytes);
}

TEST_F(SenderTurnsTest, PeersDoNotWaitForEachOther) {
  Export(1, 1);
  Export(2, 2);
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 2, 2));
}

TEST_F(SenderTurnsTest, TheTransportsBoundHoldsWhereItIsSmaller) {
  transport_.bytes_ahead_max = kCellBytes;
  Export(1, 1);
  EXPECT_THAT(transport_.order, ElementsAre(1));
  // A frame that alone is larger goes when nothing else is in flight.
  transport_.bytes_ahead_max = 1;
  transport_.CompleteOne();
  EXPECT_THAT(transport_.order, ElementsAre(1, 1));
}

TEST_F(SenderTurnsTest, ATurnEndsForCommandsAndGoesOnWithTheNextTick) {
  // As much as the bound allows, in turns of one frame.
  KvTransferOptions options;
  options.incarnation = kSender;
  options.frame_bytes_min = options.frame_bytes_max = options.turn_bytes_max = kCellBytes;
  endpoint_ = KvTransferEndpoint::Create(options, *arena_, transport_);
  Export(1, 1);
  // The push and the end of an export each give one turn.
  EXPECT_THAT(transport_.order, ElementsAre(1, 1));
  EXPECT_TRUE(endpoint_->Tick(now_));
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 1));
  EXPECT_FALSE(endpoint_->Tick(now_)) << "nothing is left";
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 1, 1));
}

// Peers that take nothing hold half of the places that are left, and the rest goes to others.
TEST_F(SenderTurnsTest, APeerLeavesPlacesToOthers) {
  LimitPlaces(8);
  for (const uint64_t number : {1, 2}) Export(number, 1);
  EXPECT_EQ(transport_.order.size(), 4u);
  transport_.order.clear();
  for (const uint64_t number : {3, 4}) Export(number, static_cast<int>(number));
  EXPECT_THAT(transport_.order, ElementsAre(3, 3, 4));
  CompleteAll();
  EXPECT_EQ(transport_.order.size(), size_t{3 * kBlocks});
  for (const uint64_t number : {1, 2}) Acknowledge(number, 1);
  for (const uint64_t number : {3, 4}) Acknowledge(number, static_cast<int>(number));
  EXPECT_EQ(endpoint_->TakeEvents().size(), 4u);
}

TEST_F(SenderTurnsTest, PeersThatWaitForAPlaceGoFirst) {
  LimitPlaces(2);
  for (const uint64_t number : {1, 2, 3}) Export(number, static_cast<int>(number));
  CompleteAll();
  ASSERT_EQ(transport_.order.size(), size_t{3 * kBlocks});
  // In the order in which they began to wait, so each goes again after the two others.
  for (const uint64_t number : {1, 2, 3}) {
    const auto begin = transport_.order.begin();
    EXPECT_EQ(std::count(begin, begin + 5, number), number == 3 ? 1 : 2) << number;
  }
}

TEST_F(SenderTurnsTest, APeerWhoseExportsEndWaitsNoLonger) {
  LimitPlaces(1);
  Export(1, 1);
  Export(2, 2);
  endpoint_->Handle(CancelExport{ExportId(2), "test"}, now_);
  Export(3, 3);
  CompleteAll();
  EXPECT_EQ(transport_.order.size(), size_t{2 * kBlocks});
  EXPECT_EQ(std::count(transport_.order.begin(), transport_.order.end(), 2), 0);
}

TEST_F(SenderTurnsTest, MoreIsExpectedWhileFramesWaitForRoom) {
  EXPECT_FALSE(endpoint_->ExpectsMore());
  Export(1, 1);
  EXPECT_TRUE(endpoint_->ExpectsMore()) << "two of four frames wait";
  transport_.CompleteOne();
  EXPECT_TRUE(endpoint_->ExpectsMore());
  transport_.CompleteOne();
  EXPECT_FALSE(endpoint_->ExpectsMore()) << "the last two are in flight, and nothing waits";
  EXPECT_THAT(transport_.more_follows, ElementsAre(true, true, true, false));
}

TEST_F(SenderTurnsTest, AnotherExportsFramesFollowToo) {
  Export(1, 1);
  Export(2, 1);
  Export(3, 2);
  CompleteAll();
  // Eight frames to peer 1 and four to peer 2; only the last one to each has no successor.
  EXPECT_EQ(std::count(transport_.more_follows.begin(), transport_.more_follows.end(), false), 2);
  EXPECT_FALSE(transport_.more_follows.back());
}

TEST_F(SenderTurnsTest, ACancelledExportGivesItsTurnUp) {
  Export(1, 1);
  Export(2, 1);
  endpoint_->Handle(CancelExport{ExportId(2), "test"}, now_);
  ASSERT_EQ(endpoint_->TakeEvents().size(), 1u) << "nothing of it was in flight";
  Export(3, 1);
  endpoint_->Handle(CancelExport{ExportId(1), "test"}, now_);
  EXPECT_TRUE(endpoint_->TakeEvents().empty()) << "ended with sends in flight";
  CompleteAll();
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 3, 3, 3, 3));
  EXPECT_EQ(endpoint_->TakeEvents().size(), 1u);
  Acknowledge(3, 1);
  EXPECT_EQ(endpoint_->counters().exports_open, 0);
}

TEST_F(SenderTurnsTest, AFailedSendEndsItsExportAndNoOther) {
  Export(1, 1);
  Export(2, 1);
  transport_.CompleteOne(absl::UnavailableError("test"));
  CompleteAll();
  EXPECT_THAT(transport_.order, ElementsAre(1, 1, 2, 2, 2, 2));
  Acknowledge(2, 1);
  const std::vector<TransferEvent> events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<ExportFailed>(events[0]));
  EXPECT_TRUE(std::holds_alternative<ExportDone>(events[1]));
}

}  // namespace
}  // namespace tandem::transfer
