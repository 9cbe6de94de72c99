// Goal: a sealed transport delivers what another one carries, over a virtual network and over UCX,
// and tells its listener of nothing else: frames wait for the keys, what is not sealed is dropped
// and counted, a damaged payload ends as data loss, and a connection that cannot be used is lost
// with a reason. Every send completes exactly once, and encrypted bytes in flight are bounded.
#include "common/transfer/sealed_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/runtime/random.h"
#include "common/transfer/key_agreement.h"
#include "common/transfer/ucx_transport.h"
#include "tests/testing/faulty_network.h"
#include "tests/testing/kv_transfer_side.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

MATCHER_P(HasCode, code, "has the status code") {
  return ::testing::ExplainMatchResult(code, arg.code(), result_listener);
}

using ::tandem::testing::Faults;
using ::tandem::testing::FaultyNetwork;
using ::tandem::testing::KvTransferClock;
using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One end: what its listener was told, and what became of its sends.
struct Side : KvTransport::Listener {
  explicit Side(std::unique_ptr<KvTransport> made) : transport(std::move(made)) {
    transport->SetListener(this);
  }
  ~Side() override { transport->SetListener(nullptr); }

  std::optional<ScatterList> OnFrame(PeerId from, const v1::KvFrame& frame, size_t payload_bytes,
                                     uint64_t receive_id) override {
    peer = from;
    leases.push_back(frame.lease_id());
    if (payload_bytes == 0) return std::nullopt;
    std::vector<std::byte>& place = places[receive_id];
    place.assign(payload_bytes, std::byte{0});
    const auto all = absl::MakeSpan(place);
    return ScatterList{all.first(payload_bytes / 3), all.subspan(payload_bytes / 3)};
  }
  void OnPayload(uint64_t receive_id, const absl::Status& status,
                 const ReceiveInterval& interval) override {
    landed.push_back(status);
    checksums.push_back(interval.checksum);
    payloads.push_back(std::move(places[receive_id]));
    places.erase(receive_id);
  }
  void OnPeerLost(PeerId, const absl::Status& status) override { lost.push_back(status); }

  void ConnectTo(const Side& other) {
    peer =
        *transport->Connect({NodeId("peer"), Incarnation(1), other.transport->address(), "host"});
  }
  // `bytes` must stay as it is until the send is done.
  void Send(uint64_t lease, const std::vector<std::byte>& bytes = {}) {
    v1::KvFrame frame;
    frame.set_lease_id(lease);
    frame.mutable_data()->set_payload_checksum(77);
    GatherList payload;
    if (!bytes.empty()) payload = {absl::MakeConstSpan(bytes)};
    transport->Send(peer, frame, std::move(payload),
                    [this](const absl::Status& status) { done.push_back(status); });
  }

  std::unique_ptr<KvTransport> transport;
  PeerId peer;
  std::vector<uint64_t> leases;
  std::map<uint64_t, std::vector<std::byte>> places;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<std::optional<uint64_t>> checksums;
  std::vector<absl::Status> landed, lost, done;
};

class SealedTransportTest : public ::testing::Test {
 protected:
  // Ends with these options; both with `options` when `options_of_b` are none.
  void Start(const SealedTransportOptions& options, const Faults& faults = {},
             const std::optional<SealedTransportOptions>& options_of_b = std::nullopt) {
    a_.reset();
    b_.reset();
    network_ = std::make_unique<FaultyNetwork>(1, faults);
    a_ = NewSide(options);
    b_ = NewSide(options_of_b.value_or(options));
  }
  std::unique_ptr<Side> NewSide(SealedTransportOptions options) {
    options.fleet_secret = "fleet";
    options.clock = &clock_;
    return std::make_unique<Side>(NewSealedTransport(options, network_->NewTransport()));
  }
  void Step(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      clock_.now += absl::Milliseconds(1);
      network_->Step();
      for (const auto& side : {a_.get(), b_.get()}) {
        if (side != nullptr) side->transport->Progress();
      }
    }
  }

  KvTransferClock clock_;
  std::unique_ptr<FaultyNetwork> network_;
  std::unique_ptr<Side> a_, b_;
};

TEST_F(SealedTransportTest, FramesWaitForTheKeysAndGoBothWays) {
  for (const bool encrypts : {false, true}) {
    Start({.encrypts = encrypts});
    const std::vector<std::byte> bytes(1000, std::byte{7});
    a_->ConnectTo(*b_);
    EXPECT_EQ(a_->transport->TransportName(a_->peer), "unknown");
    a_->Send(1, bytes);
    a_->Send(2);
    Step();
    EXPECT_THAT(b_->leases, IsEmpty());
    Step(10);
    EXPECT_THAT(b_->leases, ElementsAre(1, 2));
    EXPECT_THAT(b_->landed, ElementsAre(absl::OkStatus()));
    EXPECT_THAT(b_->payloads, ElementsAre(bytes));
    // What the listener need not compute, it is told.
    EXPECT_EQ(b_->checksums[0], encrypts ? std::optional<uint64_t>(77) : std::nullopt);
    EXPECT_EQ(b_->transport->authenticates_payloads(), encrypts);
    EXPECT_EQ(a_->transport->TransportName(a_->peer), encrypts ? "virtual+encrypted" : "virtual");
    b_->ConnectTo(*a_);  // the same connection
    b_->Send(3, bytes);
    Step(5);
    EXPECT_THAT(a_->leases, ElementsAre(3));
    EXPECT_THAT(a_->done, ElementsAre(absl::OkStatus(), absl::OkStatus()));
    for (const Side* side : {a_.get(), b_.get()}) {
      EXPECT_EQ(side->transport->refusals().messages, 0);
      EXPECT_EQ(side->transport->refusals().connections, 0);
      EXPECT_THAT(side->lost, IsEmpty());
    }
  }
}

TEST_F(SealedTransportTest, BothMayConnectAtOnce) {
  Start({.encrypts = true});
  a_->ConnectTo(*b_);
  b_->ConnectTo(*a_);
  a_->Send(1);
  b_->Send(2);
  Step(10);
  EXPECT_THAT(b_->leases, ElementsAre(1));
  EXPECT_THAT(a_->leases, ElementsAre(2));
  EXPECT_EQ(a_->transport->refusals().messages + b_->transport->refusals().messages, 0);
}

TEST_F(SealedTransportTest, WhatIsNotSealedIsDroppedAndCounted) {
  Start({});
  a_->ConnectTo(*b_);
  a_->Send(1);
  Step(10);
  Side stranger(network_->NewTransport());
  stranger.ConnectTo(*b_);
  const std::vector<std::byte> bytes(100, std::byte{6});
  v1::KvFrame frame;
  frame.set_lease_id(1);
  stranger.transport->Send(stranger.peer, frame, {absl::MakeConstSpan(bytes)}, nullptr);
  frame.mutable_sealed()->set_tag(std::string(16, 't'));
  stranger.transport->Send(stranger.peer, frame, {}, nullptr);
  frame.mutable_handshake()->set_kind(v1::KvHandshake::OFFER);
  stranger.transport->Send(stranger.peer, frame, {}, nullptr);
  Step(5);
  EXPECT_THAT(b_->leases, ElementsAre(1));
  EXPECT_EQ(b_->transport->refusals().messages, 2);
  EXPECT_EQ(b_->transport->refusals().connections, 1);
}

TEST_F(SealedTransportTest, ADamagedPayloadEndsAsDataLoss) {
  Start({.encrypts = true}, {.damage_payload = 1});
  a_->ConnectTo(*b_);
  const std::vector<std::byte> bytes(1000, std::byte{7});
  for (uint64_t lease = 1; lease <= 5; ++lease) a_->Send(lease, bytes);
  Step(10);
  ASSERT_EQ(b_->landed.size(), 5u);
  for (const absl::Status& status : b_->landed) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tag is wrong")));
  }
}

TEST_F(SealedTransportTest, RepeatedFramesReachTheListenerOnce) {
  Start({.encrypts = true, .limits = {.frames_max = 4}}, {.duplicate = 1, .delay_steps_max = 3});
  a_->ConnectTo(*b_);
  for (uint64_t lease = 1; lease <= 40; ++lease) {
    a_->Send(lease);
    Step(3);
  }
  Step(20);
  EXPECT_EQ(b_->leases.size(), 40u);
  EXPECT_GE(b_->transport->refusals().messages, 40);
}

TEST_F(SealedTransportTest, DisagreementOnEncryptionIsAClearErrorAtBothEnds) {
  Start({.encrypts = true}, {}, SealedTransportOptions{.encrypts = false});
  a_->ConnectTo(*b_);
  a_->Send(1);
  Step(10);
  ASSERT_EQ(a_->lost.size(), 1u);
  EXPECT_THAT(a_->lost[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("kv-encryption on, the peer has it off")));
  EXPECT_THAT(a_->done, ElementsAre(HasCode(absl::StatusCode::kFailedPrecondition)));
  EXPECT_EQ(b_->transport->refusals().connections, 1);
  EXPECT_THAT(b_->leases, IsEmpty());
}

TEST_F(SealedTransportTest, APeerThatNeverAnswersIsLostAtTheDeadline) {
  Start({.agree_within = absl::Milliseconds(20)});
  Side mute(network_->NewTransport());
  a_->ConnectTo(mute);
  a_->Send(1);
  Step(19);
  EXPECT_THAT(a_->lost, IsEmpty());
  Step(2);
  EXPECT_THAT(a_->lost, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("did not agree on keys within 20ms"))));
  EXPECT_THAT(a_->done, ElementsAre(HasCode(absl::StatusCode::kUnavailable)));
  a_->Send(2);
  Step();
  EXPECT_THAT(a_->done[1], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is gone")));
}

// A recorded OFFER in a connection of its own is answered, never confirmed, and ends.
TEST_F(SealedTransportTest, AReplayedHandshakeEndsItsConnectionOnly) {
  Start({.agree_within = absl::Milliseconds(20)});
  KeyAgreement::Options recorded = {
      .fleet_secret = "fleet", .identity = TransportIdentity("recorded"), .encrypts = false};
  v1::KvFrame offer;
  *offer.mutable_handshake() =
      KeyAgreement(recorded).Offer(TransportIdentity(b_->transport->address()));
  a_->ConnectTo(*b_);
  a_->Send(1);
  Step(10);
  Side replayer(network_->NewTransport());
  replayer.ConnectTo(*b_);
  for (int i = 0; i < 3; ++i) replayer.transport->Send(replayer.peer, offer, {}, nullptr);
  Step(40);
  EXPECT_EQ(b_->transport->refusals().connections, 1);
  EXPECT_EQ(replayer.lost.size(), 1u);
  a_->Send(2);
  Step(5);
  EXPECT_THAT(b_->leases, ElementsAre(1, 2));
}

TEST_F(SealedTransportTest, EncryptedBytesInFlightAreBounded) {
  Start({.encrypts = true, .sealed_bytes_max = 128 << 10});
  a_->ConnectTo(*b_);
  a_->Send(100);
  Step(10);
  const std::vector<std::byte> bytes(64 << 10, std::byte{9});
  for (uint64_t lease = 1; lease <= 5; ++lease) a_->Send(lease, bytes);
  a_->Send(6);  // needs no room
  Step();
  EXPECT_THAT(b_->leases, ElementsAre(100, 1, 2, 6));
  Step();
  EXPECT_THAT(b_->leases, ElementsAre(100, 1, 2, 6, 3, 4));
  Step(5);
  EXPECT_THAT(b_->leases, ElementsAre(100, 1, 2, 6, 3, 4, 5));
  EXPECT_EQ(a_->done.size(), 7u);
}

TEST_F(SealedTransportTest, ADisconnectEndsEverySend) {
  Start({.encrypts = true, .sealed_bytes_max = 64 << 10});
  a_->ConnectTo(*b_);
  a_->Send(100);
  Step(10);
  const std::vector<std::byte> bytes(64 << 10, std::byte{9});
  for (uint64_t lease = 1; lease <= 5; ++lease) a_->Send(lease, bytes);
  a_->transport->Disconnect(a_->peer);
  Step(3);
  ASSERT_EQ(a_->done.size(), 6u);
  for (size_t i = 1; i < 6; ++i) {
    EXPECT_THAT(a_->done[i], HasCode(absl::StatusCode::kCancelled)) << i;
  }
  EXPECT_THAT(a_->lost, IsEmpty());
  EXPECT_EQ(b_->lost.size(), 1u);
  // The next connection agrees on keys of its own.
  a_->ConnectTo(*b_);
  a_->Send(7, bytes);
  Step(10);
  EXPECT_THAT(b_->leases, ElementsAre(100, 7));
}

TEST_F(SealedTransportTest, AConnectionThatUsedUpItsNumbersIsOpenedAgain) {
  Start({.limits = {.sequences_max = 4}});
  a_->ConnectTo(*b_);
  for (uint64_t lease = 1; lease <= 3; ++lease) a_->Send(lease);
  Step(10);
  EXPECT_THAT(b_->leases, ElementsAre(1, 2, 3));
  EXPECT_THAT(a_->lost, IsEmpty());
  for (uint64_t lease = 4; lease <= 6; ++lease) a_->Send(lease);  // the keys' confirmation was one
  Step(10);
  EXPECT_EQ(b_->leases.size(), 3u);
  ASSERT_EQ(a_->lost.size(), 1u);
  EXPECT_THAT(a_->lost[0], HasCode(absl::StatusCode::kResourceExhausted));
  a_->ConnectTo(*b_);
  a_->Send(7);
  Step(10);
  EXPECT_EQ(b_->leases.back(), 7u);
}

// Real sockets and shared memory: small payloads overtake large ones, and keys change all the time.
TEST(SealedUcxTest, TransfersGoOnWhileKeysChange) {
  const uint64_t seed = 20261125;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (const char* transports : {"tcp", "shm"}) {
    for (const bool encrypts : {false, true}) {
      const auto random = NewSeededRandom(seed);
      const auto new_side = [&] {
        SealedTransportOptions options = {
            .fleet_secret = "fleet", .encrypts = encrypts, .limits = {.frames_max = 7}};
        return std::make_unique<Side>(NewSealedTransport(
            options,
            *NewUcxTransport({.transports = transports, .host = "host", .fleet_secret = "fleet"})));
      };
      const std::unique_ptr<Side> a = new_side(), b = new_side();
      a->ConnectTo(*b);
      constexpr size_t kPayloads = 300;
      std::vector<std::vector<std::byte>> sent;
      for (size_t i = 0; i < kPayloads; ++i) {
        sent.emplace_back(1 + random->Below(i % 3 == 0 ? 1'000'000 : 5000),
                          static_cast<std::byte>(i));
      }
      for (size_t i = 0; i < kPayloads; ++i) a->Send(i, sent[i]);
      const absl::Time give_up = absl::Now() + absl::Seconds(60);
      while ((b->landed.size() < kPayloads || a->done.size() < kPayloads) &&
             absl::Now() < give_up) {
        a->transport->Progress();
        b->transport->Progress();
      }
      ASSERT_EQ(b->landed.size(), kPayloads) << transports;
      for (const absl::Status& status : b->landed) ASSERT_OK(status);
      // Each one whole, whatever their order.
      std::sort(sent.begin(), sent.end());
      std::sort(b->payloads.begin(), b->payloads.end());
      EXPECT_EQ(b->payloads, sent);
      EXPECT_EQ(b->transport->refusals().messages, 0);
      EXPECT_EQ(a->transport->TransportName(a->peer),
                absl::StrCat(transports, encrypts ? "+encrypted" : ""));
    }
  }
}

}  // namespace
}  // namespace tandem::transfer
