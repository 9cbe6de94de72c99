// Goal: every check of a frame's header, one test each that fails when that check is removed. A
// frame that is right but for one field must not land, must be counted, and must not disturb the
// lease.
#include "common/transfer/busy_time.h"
#include "tests/unit/transfer/header_check_fixture.h"

namespace tandem::transfer {
namespace {

TEST_F(HeaderCheckTest, RightFrameLandsLayerByLayerInTheLeasesBlocks) {
  const std::optional<ScatterList> place = Offer(Data());
  ASSERT_TRUE(place.has_value());
  ASSERT_EQ(place->size(), 4u);
  EXPECT_EQ((*place)[0].data(), arena_->Block(0, BlockId(5)).data());
  EXPECT_EQ((*place)[1].data(), arena_->Block(0, BlockId(2)).data());
  EXPECT_EQ((*place)[2].data(), arena_->Block(1, BlockId(5)).data());
  EXPECT_EQ((*place)[3].data(), arena_->Block(1, BlockId(2)).data());
}
TEST_F(HeaderCheckTest, MoreIsExpectedOnlyAfterAFrameThatIsTakenAndForAShortTime) {
  v1::KvFrame frame = Data();
  frame.mutable_data()->set_more_follows(true);
  frame.set_lease_id(4);
  EXPECT_FALSE(Offer(frame).has_value());
  EXPECT_FALSE(endpoint_->ExpectsMore()) << "an unknown lease keeps nobody awake";
  frame.set_lease_id(kLease.value());
  ASSERT_TRUE(Offer(frame).has_value());
  EXPECT_TRUE(endpoint_->ExpectsMore());
  // A sender that ends after its word is waited for until the next look at the deadlines.
  now_ += absl::Milliseconds(20);
  endpoint_->Tick(now_);
  EXPECT_FALSE(endpoint_->ExpectsMore());
}
TEST_F(HeaderCheckTest, AuthTag) {
  v1::KvFrame frame = Data();
  auth_.Sign(frame);
  frame.set_auth_tag(frame.auth_tag() ^ 1);
  EXPECT_FALSE(endpoint_->OnFrame(kPeer, frame, frame.data().payload_bytes(), 1).has_value());
  FrameAuth("another fleet").Sign(frame);
  EXPECT_FALSE(endpoint_->OnFrame(kPeer, frame, frame.data().payload_bytes(), 2).has_value());
  EXPECT_EQ(endpoint_->counters().frames_rejected, 2);
  EXPECT_TRUE(transport_.sent.empty()) << "an unauthenticated frame was answered";
}
TEST_F(HeaderCheckTest, ReceiverIncarnation) {
  ExpectRejected([](v1::KvFrame& frame) { frame.set_receiver_incarnation(6); });
  EXPECT_EQ(SentOf(v1::KvFrame::kAbort).size(), 1u);  // the sender frees its blocks
}
TEST_F(HeaderCheckTest, KnownLease) {
  ExpectUntimely([](v1::KvFrame& frame) { frame.set_lease_id(4); });
}
TEST_F(HeaderCheckTest, StaleEpochIsAnsweredWithAbort) {
  ExpectUntimely([](v1::KvFrame& frame) { frame.set_epoch(1); });
  const auto aborts = SentOf(v1::KvFrame::kAbort);
  ASSERT_EQ(aborts.size(), 1u);
  EXPECT_EQ(aborts[0].epoch(), 1u);
  EXPECT_TRUE(aborts[0].abort().from_receiver());
}
TEST_F(HeaderCheckTest, FutureEpochIsDroppedOnly) {
  ExpectUntimely([](v1::KvFrame& frame) { frame.set_epoch(3); });
  EXPECT_TRUE(transport_.sent.empty());
}
TEST_F(HeaderCheckTest, AFinThatOvertakesItsLeaseIsTaken) {
  v1::KvFrame fin = Data();
  fin.set_lease_id(4);
  fin.mutable_fin()->set_data_frames(0);
  Offer(fin, kPeer, 0);
  EXPECT_TRUE(transport_.sent.empty());
  endpoint_->Handle(OpenLease{LeaseId(4), Epoch(2), 4, {BlockId(6), BlockId(7)}, Later()}, now_);
  endpoint_->Tick(now_);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kAbort).size(), 0u);
  ASSERT_EQ(SentOf(v1::KvFrame::kNack).size(), 1u) << "its blocks are asked for";
  EXPECT_EQ(SentOf(v1::KvFrame::kNack)[0].lease_id(), 4u);
}
TEST_F(HeaderCheckTest, AFinThatOvertakesItsEpochIsTaken) {
  v1::KvFrame fin = Data();
  fin.set_epoch(3);
  fin.mutable_fin()->set_data_frames(0);
  Offer(fin, kPeer, 0);
  EXPECT_TRUE(transport_.sent.empty());
  endpoint_->Handle(RaiseEpoch{kLease, Epoch(3), Later()}, now_);
  endpoint_->Tick(now_);
  EXPECT_EQ(SentOf(v1::KvFrame::kNack).size(), 1u);
}
TEST_F(HeaderCheckTest, AFinOfNoLeaseIsAnsweredOnce) {
  v1::KvFrame fin = Data();
  fin.set_lease_id(4);
  fin.mutable_fin()->set_data_frames(0);
  Offer(fin, kPeer, 0);
  EXPECT_TRUE(transport_.sent.empty());
  endpoint_->Tick(now_);
  endpoint_->Tick(now_);
  EXPECT_EQ(SentOf(v1::KvFrame::kAbort).size(), 1u);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 1);
}
TEST_F(HeaderCheckTest, OrdinalBelowTheLease) {
  ExpectRejected([](v1::KvFrame& frame) { frame.mutable_data()->set_first_ordinal(3); });
}
TEST_F(HeaderCheckTest, OrdinalBeyondTheLease) {
  ExpectRejected([](v1::KvFrame& frame) { frame.mutable_data()->set_first_ordinal(6); });
}
TEST_F(HeaderCheckTest, OrdinalThatOverflows) {
  ExpectRejected([](v1::KvFrame& frame) { frame.mutable_data()->set_first_ordinal(0xFFFFFFFFu); });
}
TEST_F(HeaderCheckTest, LayerBeyondTheModel) {
  ExpectRejected([](v1::KvFrame& frame) { frame.mutable_data()->set_first_layer(1); });
}
TEST_F(HeaderCheckTest, EmptyRange) {
  ExpectRejected([](v1::KvFrame& frame) {
    frame.mutable_data()->set_ordinal_count(0);
    frame.mutable_data()->set_payload_bytes(0);
  });
}
TEST_F(HeaderCheckTest, SizeInTheHeader) {
  ExpectRejected([](v1::KvFrame& frame) {
    frame.mutable_data()->set_payload_bytes(frame.data().payload_bytes() - 1);
  });
}
TEST_F(HeaderCheckTest, SizeOfThePayload) {
  EXPECT_FALSE(Offer(Data(), kPeer, 2 * kLayers * kCellBytes + 1).has_value());
  EXPECT_EQ(endpoint_->counters().frames_rejected, 1);
}
TEST_F(HeaderCheckTest, RangeInFlight) {
  ASSERT_TRUE(Offer(Data()).has_value());
  EXPECT_FALSE(Offer(Data()).has_value());
  EXPECT_EQ(endpoint_->counters().frames_untimely, 1);
}
TEST_F(HeaderCheckTest, RangeFilledAlready) {
  const auto place = Offer(Data());
  ASSERT_TRUE(place.has_value());
  Land(*place, std::byte{1});
  EXPECT_EQ(endpoint_->counters().checksum_failures, 0);
  EXPECT_FALSE(Offer(Data()).has_value());
  // As after a failover, whose sender repeats what the epoch before has filled meanwhile.
  endpoint_->Handle(RaiseEpoch{kLease, Epoch(3), Later()}, now_);
  v1::KvFrame again = Data();
  again.set_epoch(3);
  EXPECT_FALSE(Offer(again).has_value());
  EXPECT_EQ(endpoint_->counters().frames_rejected, 0);
  EXPECT_EQ(endpoint_->counters().frames_untimely, 2);
}
TEST_F(HeaderCheckTest, AnAbortOfTheEpochBeforeIsLate) {
  ASSERT_TRUE(Offer(Data()).has_value());
  endpoint_->Handle(RaiseEpoch{kLease, Epoch(3), Later()}, now_);
  endpoint_->TakeEvents();
  v1::KvFrame abort = Data();
  abort.mutable_abort()->set_reason("no more");
  Offer(abort, kPeer, 0);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 0);
  EXPECT_EQ(endpoint_->counters().frames_untimely, 1);
  EXPECT_TRUE(endpoint_->TakeEvents().empty()) << "the new epoch goes on";
}
TEST_F(HeaderCheckTest, AnAbortOfAStrangerIsRejected) {
  ASSERT_TRUE(Offer(Data()).has_value());
  v1::KvFrame abort = Data();
  abort.mutable_abort()->set_reason("no more");
  Offer(abort, kOtherPeer, 0);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 1);
  EXPECT_TRUE(endpoint_->TakeEvents().empty());
}
TEST_F(HeaderCheckTest, OneSenderAnEpoch) {
  ASSERT_TRUE(Offer(Data()).has_value());
  v1::KvFrame rest = Data();
  rest.mutable_data()->set_first_ordinal(6);
  rest.mutable_data()->set_ordinal_count(1);
  rest.mutable_data()->set_payload_bytes(kLayers * kCellBytes);
  EXPECT_FALSE(Offer(rest, kOtherPeer).has_value());
  rest.set_sender_incarnation(99);
  EXPECT_FALSE(Offer(rest).has_value());
  rest.set_sender_incarnation(kSender.value());
  EXPECT_TRUE(Offer(rest).has_value());
}
TEST_F(HeaderCheckTest, ClosedLeaseDrainsFirst) {
  const auto place = Offer(Data());
  ASSERT_TRUE(place.has_value());
  endpoint_->Handle(CloseLease{kLease, "test"}, now_);
  EXPECT_TRUE(endpoint_->TakeEvents().empty()) << "drained with a receive in flight";
  v1::KvFrame rest = Data();
  rest.mutable_data()->set_first_ordinal(6);
  rest.mutable_data()->set_ordinal_count(1);
  rest.mutable_data()->set_payload_bytes(kLayers * kCellBytes);
  const uint64_t landing = next_receive_ - 1;
  EXPECT_FALSE(Offer(rest).has_value()) << "a closed lease took more";
  endpoint_->OnPayload(landing, absl::OkStatus(), {.began = now_, .landed = now_});
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<LeaseDrained>(events[0]));
}
TEST_F(HeaderCheckTest, HungReceiveIsEndedByDroppingThePeer) {
  ASSERT_TRUE(Offer(Data()).has_value());
  endpoint_->Handle(CloseLease{kLease, "test"}, now_);
  endpoint_->Tick(now_ + absl::Milliseconds(900));
  EXPECT_TRUE(transport_.disconnected.empty());
  endpoint_->Tick(now_ + absl::Milliseconds(1100));
  EXPECT_EQ(transport_.disconnected, std::vector<PeerId>{kPeer});
}
TEST_F(HeaderCheckTest, AReceiveThatWaitsBehindOthersIsNotHung) {
  const LeaseId other(4);
  endpoint_->Handle(OpenLease{other, Epoch(2), 4, {BlockId(0), BlockId(1), BlockId(4)}, Later()},
                    now_);
  v1::KvFrame waits = Data();
  waits.set_lease_id(other.value());
  ASSERT_TRUE(Offer(waits).has_value());
  endpoint_->Handle(CloseLease{other, "test"}, now_);
  // One payload after another lands, less than drain_after apart.
  const auto land_one = [&] {
    const auto place = Offer(Data());
    if (place.has_value()) Land(*place, std::byte{9});  // damaged; it moved all the same
  };
  for (int i = 0; i < 2; ++i) {
    now_ += absl::Milliseconds(900);
    endpoint_->Tick(now_);
    land_one();
  }
  EXPECT_TRUE(transport_.disconnected.empty()) << "after 1.8 s";
  now_ += absl::Milliseconds(990);
  endpoint_->Tick(now_);
  EXPECT_TRUE(transport_.disconnected.empty());
  now_ += absl::Milliseconds(10);
  endpoint_->Tick(now_);
  EXPECT_EQ(transport_.disconnected, std::vector<PeerId>{kPeer}) << "nothing moves any more";
}
TEST_F(HeaderCheckTest, AReceiveThatNeverEndsIsHungWhateverElseMoves) {
  ASSERT_TRUE(Offer(Data()).has_value());
  endpoint_->Handle(CloseLease{kLease, "test"}, now_);
  const absl::Time closed = now_;
  for (uint64_t lease = 10; transport_.disconnected.empty(); ++lease) {
    ASSERT_LT(now_ - closed, absl::Minutes(1));
    endpoint_->Handle(OpenLease{LeaseId(lease), Epoch(2), 4, {BlockId(0), BlockId(1)}, Later()},
                      now_);
    v1::KvFrame moves = Data();
    moves.set_lease_id(lease);
    const auto place = Offer(moves);
    ASSERT_TRUE(place.has_value());
    Land(*place, std::byte{1});
    now_ += absl::Milliseconds(500);
    endpoint_->Tick(now_);
  }
  EXPECT_EQ(now_ - closed, absl::Seconds(30));
}
TEST_F(HeaderCheckTest, DamagedPayloadIsAskedForOnceThenFails) {
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const auto place = Offer(Data());
    ASSERT_TRUE(place.has_value()) << "the damaged range was not asked for again";
    Land(*place, std::byte{9});
    EXPECT_EQ(SentOf(v1::KvFrame::kNack).size(), 1u);
    EXPECT_EQ(endpoint_->counters().checksum_failures, attempt);
    EXPECT_EQ(endpoint_->TakeEvents().size(), attempt == 2 ? 1u : 0u);
  }
  EXPECT_FALSE(Offer(Data()).has_value()) << "a failed epoch took more";
}
TEST_F(HeaderCheckTest, RepeatedFinOfAnInstalledLeaseIsAcknowledged) {
  v1::KvFrame all = Data();
  all.mutable_data()->set_ordinal_count(3);
  all.mutable_data()->set_payload_bytes(3 * kLayers * kCellBytes);
  all.mutable_data()->set_payload_checksum(ChecksumOf(std::byte{4}, 3 * kLayers * kCellBytes));
  const auto place = Offer(all);
  ASSERT_TRUE(place.has_value());
  Land(*place, std::byte{4});
  v1::KvFrame fin = Data();
  fin.mutable_fin()->set_data_frames(1);
  Offer(fin, kPeer, 0);
  Offer(fin, kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kAck).size(), 2u);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<LeaseInstalled>(events[0]));
  EXPECT_FALSE(Offer(all).has_value()) << "late data";
  EXPECT_EQ(endpoint_->counters().frames_rejected, 0);
  EXPECT_EQ(endpoint_->counters().frames_untimely, 1);
}

TEST_F(HeaderCheckTest, AFloodIsAnsweredWithinABound) {
  // Answers to a peer that takes none of them: no more than 4,096 are stored.
  v1::KvFrame fin = Data();
  fin.mutable_fin()->set_data_frames(1);
  for (uint64_t lease = 100; lease < 20'000; ++lease) {
    fin.set_lease_id(lease);
    Offer(fin, kOtherPeer, 0);
  }
  EXPECT_EQ(transport_.sent.size(), 4096u);
  EXPECT_TRUE(endpoint_->TakeEvents().empty());
  EXPECT_EQ(endpoint_->counters().frames_rejected, 19'900 - 64) << "those that may be early";
  endpoint_->Tick(now_);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 19'900);
  transport_.CompleteSends();
  EXPECT_TRUE(Offer(Data()).has_value()) << "honest traffic does not go on";
}

// Goal: the receive time holds what was spent receiving, once, and not the pauses between; the
// sender's computation hides what was received before its end, and what is left is neither.
TEST_F(HeaderCheckTest, ReceiveTimeLeavesOutTheSendersPauses) {
  const absl::Time start = absl::UnixEpoch();
  const std::vector<std::pair<int, int>> landings_ms = {{0, 3}, {2, 4}, {200, 205}};
  for (int i = 0; i < 3; ++i) {
    v1::KvFrame frame = Data();
    frame.mutable_data()->set_first_ordinal(4 + i);
    frame.mutable_data()->set_ordinal_count(1);
    frame.mutable_data()->set_payload_bytes(kLayers * kCellBytes);
    frame.mutable_data()->set_payload_checksum(ChecksumOf(std::byte{4}, kLayers * kCellBytes));
    const auto place = Offer(frame);
    ASSERT_TRUE(place.has_value());
    Land(*place, std::byte{4}, start + absl::Milliseconds(landings_ms[i].first),
         start + absl::Milliseconds(landings_ms[i].second));
  }
  // The sender had computed everything 202 ms after the start; 3 ms of the last landing follow.
  endpoint_->Tick(start + absl::Milliseconds(207));
  v1::KvFrame fin = Data();
  fin.mutable_fin()->set_data_frames(3);
  fin.mutable_fin()->set_computed_us_ago(5000);
  Offer(fin, kPeer, 0);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  ASSERT_TRUE(std::holds_alternative<LeaseInstalled>(events[0]));
  const auto& installed = std::get<LeaseInstalled>(events[0]);
  EXPECT_EQ(installed.receive_time, absl::Milliseconds(9));
  EXPECT_EQ(installed.hidden_time, absl::Milliseconds(6));
  EXPECT_EQ(installed.beyond_time, absl::Milliseconds(2));
}

TEST(BusyTimeTest, CountsOverlapsOnce) {
  const auto at = [](int s) { return absl::UnixEpoch() + absl::Seconds(s); };
  BusyTime busy;
  busy.Add(at(5), at(6));
  busy.Add(at(8), at(9));
  EXPECT_EQ(busy.total(), absl::Seconds(2));
  busy.Add(at(8), at(10));  // grows the last one
  EXPECT_EQ(busy.total(), absl::Seconds(3));
  busy.Add(at(0), at(12));  // swallows all
  EXPECT_EQ(busy.total(), absl::Seconds(12));
  busy.Add(at(12), at(12));
  busy.Add(at(20), at(21));
  EXPECT_EQ(busy.total(), absl::Seconds(13));
  EXPECT_EQ(busy.TotalAfter(at(0)), absl::Seconds(13));
  EXPECT_EQ(busy.TotalAfter(at(10)), absl::Seconds(3));
  EXPECT_EQ(busy.TotalAfter(at(15)), absl::Seconds(1));
  EXPECT_EQ(busy.TotalAfter(at(21)), absl::ZeroDuration());
}

}  // namespace
}  // namespace tandem::transfer
