// Goal: what a receiver answers means something only if it speaks of the export, comes from its
// peer and asks for what was pushed; one test for each check, which fails when the check is
// removed.
#include "tests/unit/transfer/header_check_fixture.h"

namespace tandem::transfer {
namespace {

// The sending side: the export of lease 9 at peer 8, of two blocks; only layer 0 is pushed.
class SenderCheckTest : public HeaderCheckTest {
 protected:
  SenderCheckTest() {
    endpoint_->Handle(OpenExport{ExportId(1),
                                 PeerAddress{NodeId("d"), kSender, "x", "h"},
                                 LeaseId(9),
                                 Epoch(1),
                                 0,
                                 {BlockId(0), BlockId(1)},
                                 Later()},
                      now_);
    endpoint_->Handle(PushRange{ExportId(1), 0, 2, 0, 1}, now_);
    transport_.CompleteSends();
  }
  v1::KvFrame Answer() const {
    v1::KvFrame frame;
    frame.set_sender_incarnation(kSender.value());
    frame.set_receiver_incarnation(kReceiver.value());
    frame.set_lease_id(9);
    frame.set_epoch(1);
    return frame;
  }
  v1::KvFrame Nack(int layer) const {
    v1::KvFrame frame = Answer();
    v1::KvRange& range = *frame.mutable_nack()->add_missing();
    range.set_ordinal_count(2);
    range.set_first_layer(layer);
    range.set_layer_count(1);
    return frame;
  }
};

TEST_F(SenderCheckTest, NackOfWhatWasPushedIsResent) {
  Offer(Nack(0), kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kData).size(), 2u);
}
TEST_F(SenderCheckTest, NackOfWhatWasNotPushedSendsNothing) {
  Offer(Nack(1), kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kData).size(), 1u);
  EXPECT_EQ(endpoint_->counters().frames_rejected, 1);
}
TEST_F(SenderCheckTest, NackThatAsksForMoreThanThereIs) {
  v1::KvFrame frame = Nack(0);
  for (int i = 0; i < 3; ++i) *frame.mutable_nack()->add_missing() = frame.nack().missing(0);
  Offer(frame, kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kData).size(), 1u);
}
TEST_F(SenderCheckTest, TooManyRoundsOfRepeatsEndTheExport) {
  for (int i = 0; i < 64; ++i) Offer(Nack(0), kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kData).size(), 65u);
  EXPECT_TRUE(SentOf(v1::KvFrame::kAbort).empty());
  Offer(Nack(0), kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kAbort).size(), 1u);
}
TEST_F(SenderCheckTest, AnswersOfAnotherPeerOrIncarnationMeanNothing) {
  Offer(Nack(0), kOtherPeer, 0);
  v1::KvFrame stranger = Nack(0);
  stranger.set_sender_incarnation(77);
  Offer(stranger, kPeer, 0);
  EXPECT_EQ(SentOf(v1::KvFrame::kData).size(), 1u);
}
TEST_F(SenderCheckTest, AckBeforeFinMeansNothing) {
  v1::KvFrame ack = Answer();
  ack.mutable_ack();
  Offer(ack, kPeer, 0);
  EXPECT_TRUE(endpoint_->TakeEvents().empty());
  endpoint_->Handle(PushRange{ExportId(1), 0, 2, 1, 1}, now_);
  endpoint_->Handle(FinishExport{ExportId(1), {}}, now_);
  endpoint_->Tick(now_ + absl::Milliseconds(7));
  transport_.CompleteSends();
  ASSERT_EQ(SentOf(v1::KvFrame::kFin).size(), 1u);
  EXPECT_EQ(SentOf(v1::KvFrame::kFin)[0].fin().data_frames(), 2u);
  EXPECT_EQ(SentOf(v1::KvFrame::kFin)[0].fin().computed_us_ago(), 7000u);
  Offer(ack, kPeer, 0);
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<ExportDone>(events[0]));
}
TEST_F(SenderCheckTest, CancelWaitsForSendsInFlight) {
  endpoint_->Handle(PushRange{ExportId(1), 0, 2, 1, 1}, now_);
  endpoint_->Handle(CancelExport{ExportId(1), "test"}, now_);
  EXPECT_TRUE(endpoint_->TakeEvents().empty()) << "ended with a send in flight";
  transport_.CompleteSends();
  EXPECT_EQ(endpoint_->TakeEvents().size(), 1u);
}

}  // namespace
}  // namespace tandem::transfer
