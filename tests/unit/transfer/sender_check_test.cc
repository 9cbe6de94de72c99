// Goal: what a receiver answers means something only if it speaks of the export, comes from its
// peer and asks for what was pushed; one test for each check, which fails when the check is
// removed.
#include "common/transfer/fin_loans.h"
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
// More loans than headers of UCX have room for when each names its creditor.
TEST_F(SenderCheckTest, AFinOfManyLoansIsShort) {
  FinishExport finish{ExportId(1), {}};
  for (int i = 0; i < 600; ++i) {
    v1::KvLoan& loan = finish.loans.emplace_back();
    loan.set_first_unit(i);
    loan.set_units(1);
    loan.set_creditor_node_id(absl::StrCat("a-creditor-of-this-fleet-", i % 3));
    loan.set_creditor_incarnation(uint64_t{1} << 60);
  }
  endpoint_->Handle(PushRange{ExportId(1), 0, 2, 1, 1}, now_);
  endpoint_->Handle(finish, now_);
  transport_.CompleteSends();
  const std::vector<v1::KvFrame> fins = SentOf(v1::KvFrame::kFin);
  ASSERT_EQ(fins.size(), 1u);
  EXPECT_LT(fins[0].ByteSizeLong(), 8000u);
  EXPECT_EQ(fins[0].fin().creditors_size(), 3);
  const std::vector<v1::KvLoan> loans = LoansOf(fins[0].fin());
  ASSERT_EQ(loans.size(), finish.loans.size());
  for (size_t i = 0; i < loans.size(); ++i) {
    EXPECT_EQ(loans[i].SerializeAsString(), finish.loans[i].SerializeAsString()) << i;
  }
}
TEST_F(SenderCheckTest, LoansOfCreditorsThatAFinDoesNotNameHaveNone) {
  v1::KvFin fin;
  fin.add_creditors()->set_node_id("c");
  fin.add_creditors()->set_node_id(std::string(129, 'x'));
  for (const uint32_t number : {1u, 2u, 3u, 0xFFFFFFFFu}) fin.add_loans()->set_creditor(number);
  v1::KvLoan& named = *fin.add_loans();  // as releases before named them
  named.set_creditor_node_id("d");
  named.set_creditor_incarnation(5);
  std::vector<std::string> names;
  for (const v1::KvLoan& loan : LoansOf(fin)) {
    EXPECT_EQ(loan.creditor(), 0u);
    names.push_back(loan.creditor_node_id());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"c", "", "", "", "d"}));
}
TEST_F(SenderCheckTest, AFinThatCannotBeSentEndsTheExport) {
  endpoint_->Handle(PushRange{ExportId(1), 0, 2, 1, 1}, now_);
  endpoint_->Handle(FinishExport{ExportId(1), {}}, now_);
  transport_.fin_status = absl::InvalidArgumentError("a header of 9000 bytes");
  transport_.CompleteSends();
  const auto events = endpoint_->TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  const absl::Status status = std::get<ExportFailed>(events[0]).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << "as for data that is not sent";
  EXPECT_NE(status.message().find("its FIN of 0 loans, to node d, was not sent: a header of 9000"),
            absl::string_view::npos)
      << status;
  EXPECT_EQ(SentOf(v1::KvFrame::kAbort).size(), 1u) << "the receiver waits no longer";
  EXPECT_EQ(endpoint_->counters().exports_open, 0);
}
TEST_F(SenderCheckTest, ARepeatedFinThatCannotBeSentEndsTheExport) {
  endpoint_->Handle(PushRange{ExportId(1), 0, 2, 1, 1}, now_);
  endpoint_->Handle(FinishExport{ExportId(1), {}}, now_);
  transport_.CompleteSends();
  EXPECT_TRUE(endpoint_->TakeEvents().empty());
  transport_.fin_status = absl::UnavailableError("test");
  endpoint_->Tick(now_ + absl::Seconds(1));
  ASSERT_EQ(SentOf(v1::KvFrame::kFin).size(), 2u);
  transport_.CompleteSends();
  EXPECT_EQ(endpoint_->TakeEvents().size(), 1u);
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
