// Goal: payloads take a channel once it is open at both ends and say so; offers under another
// secret, too many offers, and headers that cannot be on a channel do no more than end or decline
// it.
#include "common/transfer/nccl_transport.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/transfer/frame_auth.h"
#include "tests/testing/faulty_network.h"
#include "tests/testing/loopback_channels.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

using ::tandem::testing::FaultyNetwork;
using ::tandem::testing::LoopbackChannels;

constexpr size_t kSlotBytes = 64;

struct StepClock final : Clock {
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

// Takes every payload.
struct Taker final : KvTransport::Listener {
  std::optional<ScatterList> OnFrame(PeerId, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t) override {
    frames.push_back(frame);
    if (payload_bytes == 0) return std::nullopt;
    payload.assign(payload_bytes, std::byte{0});
    return ScatterList{absl::MakeSpan(payload)};
  }
  void OnPayload(uint64_t, const absl::Status& status, const ReceiveInterval&) override {
    status.ok() ? ++landed : ++failed;
  }
  void OnPeerLost(PeerId, const absl::Status&) override { ++lost; }

  std::vector<v1::KvFrame> frames;
  std::vector<std::byte> payload;
  int landed = 0, failed = 0, lost = 0;
};

class NcclTransportTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvTransport> NewEnd(const std::string& secret, int incoming_max = 64) {
    NcclTransportOptions options;
    options.fleet_secret = secret;
    options.incoming_max = incoming_max;
    options.clock = &clock_;
    return NewNcclTransport(options, network_.NewTransport(), channels_.NewEnd(2, kSlotBytes));
  }
  PeerId Connect(KvTransport& from, const KvTransport& to) {
    return *from.Connect({NodeId("to"), Incarnation(1), to.address(), "host"});
  }
  // Sends 40 bytes of `value`; says how it ended once it did.
  absl::Status Send(KvTransport& from, PeerId to, std::byte value,
                    absl::Span<KvTransport* const> all) {
    payload_.assign(40, value);
    v1::KvFrame frame;
    frame.mutable_data()->set_payload_bytes(payload_.size());
    std::optional<absl::Status> outcome;
    from.Send(to, frame, {absl::MakeConstSpan(payload_)},
              [&](const absl::Status& status) { outcome = status; });
    Step(all, 10);
    return outcome.value_or(absl::UnknownError("not done"));
  }
  void Step(absl::Span<KvTransport* const> all, int steps) {
    for (int i = 0; i < steps; ++i) {
      clock_.now += absl::Milliseconds(1);
      network_.Step();
      for (KvTransport* transport : all) transport->Progress();
    }
  }

  StepClock clock_;
  FaultyNetwork network_{1, {}};
  LoopbackChannels channels_{1, {}};
  std::vector<std::byte> payload_;
};

TEST_F(NcclTransportTest, PayloadsTakeTheChannelOnceItIsOpen) {
  const auto a = NewEnd("s"), b = NewEnd("s");
  KvTransport* const both[] = {a.get(), b.get()};
  Taker taker;
  b->SetListener(&taker);
  const PeerId to = Connect(*a, *b);
  ASSERT_OK(Send(*a, to, std::byte{1}, both));  // offers the channel and does not wait for it
  EXPECT_EQ(channels_.delivered(), 0);
  EXPECT_EQ(a->TransportName(to), "loopback");
  for (int i = 2; i < 60; ++i) {
    ASSERT_OK(Send(*a, to, static_cast<std::byte>(i), both));
    EXPECT_EQ(taker.landed, i);
    EXPECT_EQ(taker.payload, payload_);
    EXPECT_FALSE(
        taker.frames.back().has_via_channel());  // what the KV transfer signed, and no more
  }
  EXPECT_EQ(channels_.delivered(), 58);
  // The peer's end is told when the connection ends, and what is under way ends first.
  a->Disconnect(to);
  Step(both, 5);
  EXPECT_EQ(taker.lost, 1);
}

// Who hears that a send was given up may send again before the connection is gone.
TEST_F(NcclTransportTest, APeerWhoseConnectionEndsGetsNoFurtherChannel) {
  const auto a = NewEnd("s"), b = NewEnd("s");
  KvTransport* const both[] = {a.get(), b.get()};
  Taker taker;
  b->SetListener(&taker);
  const PeerId to = Connect(*a, *b);
  for (int i = 1; i < 4; ++i) ASSERT_OK(Send(*a, to, static_cast<std::byte>(i), both));
  ASSERT_EQ(a->TransportName(to), "loopback");
  const int64_t channels = channels_.channels();
  v1::KvFrame frame;
  frame.mutable_data()->set_payload_bytes(payload_.size());
  const GatherList payload = {absl::MakeConstSpan(payload_)};
  int given_up = 0, again = 0;
  a->Send(to, frame, payload, [&](const absl::Status& status) {
    given_up += status.ok() ? 0 : 1;
    a->Send(to, frame, payload, [&](const absl::Status&) { ++again; });
  });
  a->Disconnect(to);
  Step(both, 5);
  EXPECT_EQ(given_up, 1);
  EXPECT_EQ(again, 1) << "it ends, too";
  EXPECT_EQ(channels_.channels(), channels);
}

TEST_F(NcclTransportTest, WhatIsLargerThanASlotGoesBesideTheChannel) {
  const auto a = NewEnd("s"), b = NewEnd("s");
  KvTransport* const both[] = {a.get(), b.get()};
  Taker taker;
  b->SetListener(&taker);
  const PeerId to = Connect(*a, *b);
  ASSERT_OK(Send(*a, to, std::byte{1}, both));
  const std::vector<std::byte> large(kSlotBytes + 1, std::byte{7});
  v1::KvFrame frame;
  frame.mutable_data()->set_payload_bytes(large.size());
  a->Send(to, frame, {absl::MakeConstSpan(large)}, [](const absl::Status&) {});
  Step(both, 10);
  EXPECT_EQ(taker.payload, large);
  EXPECT_EQ(channels_.delivered(), 0);
}

TEST_F(NcclTransportTest, OffersUnderAnotherSecretOrTooManyAreNotTaken) {
  const auto a = NewEnd("s"), stranger = NewEnd("t"), second = NewEnd("s"),
             b = NewEnd("s", /*incoming_max=*/1);
  KvTransport* const all[] = {a.get(), stranger.get(), second.get(), b.get()};
  Taker taker;
  b->SetListener(&taker);
  for (KvTransport* sender : {stranger.get(), a.get(), second.get()}) {
    const PeerId to = Connect(*sender, *b);
    for (int i = 0; i < 3; ++i) ASSERT_OK(Send(*sender, to, std::byte{9}, all));
    EXPECT_EQ(sender->TransportName(to), sender == a.get() ? "loopback" : "virtual");
  }
  EXPECT_EQ(taker.landed, 9);
  EXPECT_EQ(channels_.delivered(), 2);  // a's, after the first
}

TEST_F(NcclTransportTest, HeadersThatCannotBeOnTheChannelEndIt) {
  const auto honest = NewEnd("s");
  Taker taker, answers;
  honest->SetListener(&taker);
  const auto hostile = network_.NewTransport();
  hostile->SetListener(&answers);
  const PeerId to = Connect(*hostile, *honest);
  const auto ends = channels_.NewEnd(2, kSlotBytes);
  KvTransport* const all[] = {honest.get()};
  const FrameAuth auth("s");
  uint64_t number = 0;
  for (const auto& [ordinal, bytes] :
       {std::pair<uint64_t, uint64_t>(1000, 8), {0, 0}, {0, kSlotBytes + 1}}) {
    ASSERT_OK_AND_ASSIGN(const std::string id, ends->NewId());
    ASSERT_OK_AND_ASSIGN(const auto channel, ends->Open(id, kernels::PairChannels::Side::kSender));
    v1::KvFrame offer;
    offer.mutable_channel()->set_kind(v1::KvChannel::OFFER);
    offer.mutable_channel()->set_number(++number);
    offer.mutable_channel()->set_id(id);
    auth.Sign(offer);
    hostile->Send(to, offer, {}, [](const absl::Status&) {});
    Step(all, 4);
    ASSERT_EQ(answers.frames.back().channel().kind(), v1::KvChannel::READY);
    v1::KvFrame header;
    header.mutable_data();
    header.mutable_via_channel()->set_channel(number);
    header.mutable_via_channel()->set_ordinal(ordinal);
    header.mutable_via_channel()->set_bytes(bytes);
    hostile->Send(to, header, {}, [](const absl::Status&) {});
    Step(all, 4);
    EXPECT_EQ(answers.frames.back().channel().kind(), v1::KvChannel::CLOSED)
        << ordinal << " " << bytes;
    EXPECT_TRUE(taker.frames.empty());
  }
}

}  // namespace
}  // namespace tandem::transfer
