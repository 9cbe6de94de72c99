// Goal: two ends of one connection agree on keys and open each other's frames, in any order and
// while keys change; whatever else arrives is refused and changes nothing: damaged, repeated or
// returned frames, frames of other connections, handshakes that were recorded, made up or meant for
// others.
#include "common/transfer/sealed_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

MATCHER_P(HasCode, code, "has the status code") {
  return ::testing::ExplainMatchResult(code, arg.code(), result_listener);
}

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kRepeated = absl::StatusCode::kAlreadyExists;
const absl::Time kNow = absl::UnixEpoch();

// One end of a connection, and a frame with a payload as it travels.
struct Travelling {
  v1::KvSealed sealed;
  std::vector<std::byte> payload;
};

struct End {
  explicit End(const std::string& name, bool encrypts = true, const std::string& secret = "fleet",
               const KeyLimits& limits = {})
      : options{.agreement = {.fleet_secret = secret,
                              .identity = TransportIdentity(name),
                              .encrypts = encrypts},
                .limits = limits},
        session(options) {}
  v1::KvHandshake OfferTo(const End& other) {
    return session.Offer(other.options.agreement.identity);
  }
  Travelling Send(uint64_t lease, size_t payload_bytes = 100) {
    v1::KvFrame frame;
    frame.set_lease_id(lease);
    const std::vector<std::byte> payload(payload_bytes, static_cast<std::byte>(lease));
    Travelling sent;
    sent.payload = payload;
    const GatherList pieces = {absl::MakeConstSpan(payload).first(payload_bytes / 3),
                               absl::MakeConstSpan(payload).subspan(payload_bytes / 3)};
    const bool encrypts = options.agreement.encrypts;
    auto sealed = session.Seal(&frame, pieces, encrypts ? sent.payload.data() : nullptr, kNow);
    EXPECT_OK(sealed.status());
    if (sealed.ok()) sent.sealed = *std::move(sealed);
    return sent;
  }
  // The lease that the frame names, once frame and payload are what was sent.
  absl::StatusOr<uint64_t> Receive(const Travelling& sent) {
    auto opened = session.Open(sent.sealed, sent.payload.size());
    if (!opened.ok()) return opened.status();
    if (!opened->frame.has_value()) return absl::NotFoundError("a confirmation");
    const uint64_t lease = opened->frame->lease_id();
    std::vector<std::byte> payload = sent.payload;
    const ScatterList place = {absl::MakeSpan(payload).first(payload.size() / 2),
                               absl::MakeSpan(payload).subspan(payload.size() / 2)};
    if (opened->payload.has_value() && !opened->payload->Open(place)) {
      return absl::DataLossError("the payload's tag is wrong");
    }
    for (const std::byte byte : payload) EXPECT_EQ(byte, static_cast<std::byte>(lease));
    return lease;
  }

  const SealedSession::Options options;
  SealedSession session;
};

// Returns the OFFER, as an eavesdropper has it.
v1::KvHandshake Agree(End& initiator, End& responder) {
  const v1::KvHandshake offer = initiator.OfferTo(responder);
  auto answer = responder.session.OnHandshake(offer, kNow);
  EXPECT_OK(answer.status());
  EXPECT_TRUE(answer->has_value());
  EXPECT_FALSE(responder.session.open());
  const auto nothing = initiator.session.OnHandshake(**answer, kNow);
  EXPECT_OK(nothing.status());
  EXPECT_FALSE(nothing->has_value());
  EXPECT_TRUE(initiator.session.open());
  const auto confirmation = initiator.session.Seal(nullptr, {}, nullptr, kNow);
  EXPECT_OK(confirmation.status());
  const auto opened = responder.session.Open(*confirmation, 0);
  EXPECT_OK(opened.status());
  EXPECT_FALSE(opened->frame.has_value());
  EXPECT_TRUE(responder.session.open());
  return offer;
}

class SealedSessionTest : public ::testing::TestWithParam<bool> {
 protected:
  bool encrypts() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Encryption, SealedSessionTest, ::testing::Bool());

TEST_P(SealedSessionTest, FramesGoBothWaysInAnyOrder) {
  End a("a", encrypts()), b("b", encrypts());
  Agree(a, b);
  std::vector<Travelling> sent;
  for (uint64_t lease = 1; lease <= 50; ++lease) sent.push_back(a.Send(lease, (lease - 1) * 7));
  std::swap(sent[0], sent[49]);
  std::swap(sent[7], sent[23]);
  for (const Travelling& one : sent) EXPECT_OK(b.Receive(one).status());
  EXPECT_EQ(*a.Receive(b.Send(7)), 7u);
}

TEST(SealedPayloadTest, OnlyEncryptionHidesBytes) {
  for (const bool encrypts : {false, true}) {
    End a("a", encrypts), b("b", encrypts);
    Agree(a, b);
    v1::KvFrame frame;
    frame.mutable_abort()->set_reason("what nobody may read");
    std::vector<std::byte> payload(64, std::byte{'k'}), sealed_payload(64);
    const auto sealed =
        a.session.Seal(&frame, {absl::MakeConstSpan(payload)}, sealed_payload.data(), kNow);
    ASSERT_OK(sealed.status());
    const bool readable = sealed->SerializeAsString().find("nobody may read") != std::string::npos;
    EXPECT_NE(readable, encrypts);
    EXPECT_EQ(sealed_payload == std::vector<std::byte>(64), !encrypts);  // untouched
    EXPECT_NE(sealed_payload, payload);
  }
}

TEST_P(SealedSessionTest, WhatWasChangedIsRefused) {
  const std::vector<std::function<void(Travelling&)>> changes = {
      [](Travelling& t) { (*t.sealed.mutable_frame())[0] ^= 1; },
      [](Travelling& t) { t.sealed.mutable_frame()->push_back('\0'); },
      [](Travelling& t) { t.sealed.mutable_frame()->pop_back(); },
      [](Travelling& t) { (*t.sealed.mutable_tag())[15] ^= '\x80'; },
      [](Travelling& t) { t.sealed.mutable_tag()->pop_back(); },
      [](Travelling& t) { t.sealed.clear_tag(); },
      [](Travelling& t) { t.sealed.set_tag(std::string(16, '\0')); },
      [](Travelling& t) { t.sealed.set_sequence(t.sealed.sequence() + 1); },
      [](Travelling& t) { t.sealed.set_generation(1); },
      [](Travelling& t) { t.payload.push_back(std::byte{0}); },
      [](Travelling& t) { t.payload.clear(); },
      [](Travelling& t) { t.sealed.mutable_payload_tag()->push_back('x'); },
      [](Travelling& t) { t.sealed.set_payload_tag(std::string(16, 'x')); },
      [](Travelling& t) { t.sealed.mutable_frame()->append(16, 'x'); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    End a("a", encrypts()), b("b", encrypts());
    Agree(a, b);
    Travelling changed = a.Send(1);
    const Travelling whole = changed;
    changes[i](changed);
    EXPECT_THAT(b.Receive(changed).status(), HasCode(kDenied)) << i;
    EXPECT_EQ(*b.Receive(whole), 1u) << i;  // the forgery used nothing up
  }
}

TEST(SealedPayloadTest, ADamagedPayloadIsNoticed) {
  End a("a"), b("b");
  Agree(a, b);
  for (const size_t at : {size_t{0}, size_t{33}, size_t{99}}) {
    Travelling sent = a.Send(1);
    sent.payload[at] ^= std::byte{0x40};
    EXPECT_THAT(b.Receive(sent).status(), HasCode(absl::StatusCode::kDataLoss)) << at;
  }
  // Payloads of two frames that changed places.
  Travelling first = a.Send(1), second = a.Send(1);
  std::swap(first.payload, second.payload);
  EXPECT_THAT(b.Receive(first).status(), HasCode(absl::StatusCode::kDataLoss));
}

TEST_P(SealedSessionTest, RepeatedReturnedAndForeignFramesAreRefused) {
  End a("a", encrypts()), b("b", encrypts());
  Agree(a, b);
  const Travelling sent = a.Send(1);
  EXPECT_OK(b.Receive(sent).status());
  EXPECT_THAT(b.Receive(sent).status(), HasCode(kRepeated));
  EXPECT_THAT(a.Receive(sent).status(), HasCode(::testing::AnyOf(kDenied, kRepeated)));
  const Travelling fresh = a.Send(2);
  EXPECT_THAT(a.Receive(fresh).status(), HasCode(kDenied));  // returned, with a number a awaits
  // Another connection of the same two processes, and of a third one.
  End a2("a", encrypts()), b2("b", encrypts()), c("c", encrypts()), b3("b", encrypts());
  Agree(a2, b2);
  Agree(c, b3);
  EXPECT_THAT(b2.Receive(fresh).status(), HasCode(kDenied));
  EXPECT_THAT(b3.Receive(fresh).status(), HasCode(kDenied));
  EXPECT_EQ(*b.Receive(fresh), 2u);
}

TEST_P(SealedSessionTest, TransfersGoOnWhileKeysChange) {
  const KeyLimits limits = {.frames_max = 3};
  End a("a", encrypts(), "fleet", limits), b("b", encrypts(), "fleet", limits);
  Agree(a, b);
  std::vector<Travelling> sent;
  for (uint64_t lease = 0; lease < 60; ++lease) sent.push_back(a.Send(lease));
  EXPECT_GT(sent.back().sealed.generation(), 15u);
  // Neighbours change places, so that frames of a generation come behind the next one's.
  for (size_t i = 0; i + 1 < sent.size(); i += 2) {
    EXPECT_OK(b.Receive(sent[i + 1]).status()) << i;
    EXPECT_OK(b.Receive(sent[i]).status()) << i;
  }
  // Two generations later their keys are gone.
  EXPECT_THAT(b.Receive(sent[0]).status(), HasCode(kRepeated));
}

TEST(SealedPayloadTest, APayloadThatLandsAfterItsKeysEndedIsOpened) {
  const KeyLimits limits = {.frames_max = 1};
  End a("a", true, "fleet", limits), b("b", true, "fleet", limits);
  Agree(a, b);
  Travelling slow = a.Send(9);
  auto opened = b.session.Open(slow.sealed, slow.payload.size());
  ASSERT_OK(opened.status());
  for (uint64_t lease = 10; lease < 20; ++lease) EXPECT_OK(b.Receive(a.Send(lease)).status());
  EXPECT_TRUE(opened->payload->Open({absl::MakeSpan(slow.payload)}));
  EXPECT_EQ(slow.payload[50], std::byte{9});
}

TEST(SealedPayloadTest, AConnectionEndsWithItsNumbers) {
  const KeyLimits limits = {.sequences_max = 3};
  End a("a", true, "fleet", limits), b("b");
  Agree(a, b);
  a.Send(1);
  a.Send(2);
  v1::KvFrame frame;
  EXPECT_THAT(a.session.Seal(&frame, {}, nullptr, kNow).status(),
              HasCode(absl::StatusCode::kResourceExhausted));
}

// ---- Handshakes ----

TEST(SealedHandshakeTest, ARecordedHandshakeIsOfNoUse) {
  End a("a"), b("b");
  const v1::KvHandshake offer = Agree(a, b);
  const Travelling sent = a.Send(1);
  EXPECT_THAT(b.session.OnHandshake(offer, kNow).status(),
              StatusIs(kRepeated, HasSubstr("sent before")));
  EXPECT_EQ(*b.Receive(sent), 1u);
  // A new connection answers it, and then opens nothing that was recorded.
  End again("b");
  const auto answer = again.session.OnHandshake(offer, kNow);
  ASSERT_OK(answer.status());
  EXPECT_THAT(again.Receive(sent).status(), HasCode(kDenied));
  EXPECT_FALSE(again.session.open());
  // The process that made the offer does not take the new answer for the old one's.
  EXPECT_THAT(a.session.OnHandshake(**answer, kNow).status(), HasCode(kRepeated));
  // Another process of the fleet does not answer it at all.
  End c("c");
  EXPECT_THAT(c.session.OnHandshake(offer, kNow).status(), HasCode(kDenied));
}

TEST(SealedHandshakeTest, ARecordedAnswerIsRefused) {
  End a("a"), b("b");
  const v1::KvHandshake offer = a.OfferTo(b);
  const auto recorded = b.session.OnHandshake(offer, kNow);
  End again("a"), victim("b");
  again.OfferTo(victim);
  EXPECT_THAT(again.session.OnHandshake(**recorded, kNow).status(), HasCode(kDenied));
  EXPECT_FALSE(again.session.open());
}

TEST(SealedHandshakeTest, MadeUpHandshakesAreRefusedAndHarmNothing) {
  const std::vector<std::function<void(v1::KvHandshake&)>> changes = {
      [](v1::KvHandshake& m) { (*m.mutable_nonce())[0] ^= 1; },
      [](v1::KvHandshake& m) { (*m.mutable_public_key())[0] ^= 1; },
      [](v1::KvHandshake& m) { (*m.mutable_sender())[0] ^= 1; },
      [](v1::KvHandshake& m) { (*m.mutable_receiver())[0] ^= 1; },
      [](v1::KvHandshake& m) { (*m.mutable_tag())[0] ^= 1; },
      [](v1::KvHandshake& m) { m.set_encrypts(!m.encrypts()); },
      [](v1::KvHandshake& m) { m.mutable_nonce()->push_back('x'); },
      [](v1::KvHandshake& m) { m.clear_public_key(); },
      [](v1::KvHandshake& m) { m.set_public_key(std::string(32, '\0')); },
      [](v1::KvHandshake& m) { m.set_kind(v1::KvHandshake::KIND_UNSPECIFIED); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    End a("a"), b("b");
    const v1::KvHandshake offer = a.OfferTo(b);
    v1::KvHandshake forged = offer;
    changes[i](forged);
    EXPECT_FALSE(b.session.OnHandshake(forged, kNow).ok()) << i;
    EXPECT_OK(b.session.failure());
    const auto answer = b.session.OnHandshake(offer, kNow);
    ASSERT_OK(answer.status());
    forged = **answer;
    changes[i](forged);
    EXPECT_FALSE(a.session.OnHandshake(forged, kNow).ok()) << i;
    EXPECT_FALSE(a.session.open()) << i;
    EXPECT_OK(a.session.OnHandshake(**answer, kNow).status()) << i;
    EXPECT_TRUE(a.session.open()) << i;
  }
}

TEST(SealedHandshakeTest, ARepeatedOfferGetsTheSameAnswer) {
  End a("a"), b("b");
  const v1::KvHandshake offer = a.OfferTo(b);
  const auto answer = b.session.OnHandshake(offer, kNow);
  const auto again = b.session.OnHandshake(offer, kNow);
  ASSERT_OK(again.status());
  EXPECT_EQ((*again)->SerializeAsString(), (*answer)->SerializeAsString());
  EXPECT_OK(a.session.OnHandshake(**answer, kNow).status());
  EXPECT_EQ(*b.Receive(a.Send(1)), 1u);
}

TEST(SealedHandshakeTest, AnotherFleetIsRefused) {
  End a("a", true, "another fleet"), b("b");
  EXPECT_THAT(b.session.OnHandshake(a.OfferTo(b), kNow).status(),
              StatusIs(kDenied, HasSubstr("fleet-secret-file")));
}

// It has the secret, and sends a key that makes every X25519 secret zero.
TEST(SealedHandshakeTest, AKeyOfNoUseIsRefused) {
  End b("b");
  KeyAgreement::Options options = {
      .fleet_secret = "fleet", .identity = TransportIdentity("a"), .encrypts = true};
  v1::KvHandshake offer = KeyAgreement(options).Offer(b.options.agreement.identity);
  offer.set_public_key(std::string(32, '\0'));
  offer.set_tag(KeyAgreement::OfferTag(options.fleet_secret, offer));
  EXPECT_THAT(b.session.OnHandshake(offer, kNow).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of no use")));
}

TEST(SealedHandshakeTest, AConnectionAnswersSixteenOffers) {
  End b("b");
  for (int i = 0; i < 16; ++i) {
    EXPECT_OK(b.session.OnHandshake(End("a").OfferTo(b), kNow).status()) << i;
  }
  EXPECT_THAT(b.session.OnHandshake(End("a").OfferTo(b), kNow).status(),
              HasCode(absl::StatusCode::kResourceExhausted));
}

TEST(SealedHandshakeTest, DisagreementOnEncryptionIsToldToBoth) {
  for (const bool initiator_encrypts : {false, true}) {
    End a("a", initiator_encrypts), b("b", !initiator_encrypts);
    const auto refusal = b.session.OnHandshake(a.OfferTo(b), kNow);
    ASSERT_OK(refusal.status());
    ASSERT_TRUE(refusal->has_value());
    v1::KvHandshake forged = **refusal;
    (*forged.mutable_tag())[0] ^= 1;
    EXPECT_THAT(a.session.OnHandshake(forged, kNow).status(), HasCode(kDenied));
    EXPECT_OK(a.session.failure());
    EXPECT_OK(a.session.OnHandshake(**refusal, kNow).status());
    for (const End* end : {&a, &b}) {
      EXPECT_THAT(end->session.failure(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                   HasSubstr("all nodes of a fleet")));
      EXPECT_THAT(end->session.failure().message(),
                  HasSubstr(end->options.agreement.encrypts ? "this node has kv-encryption on"
                                                            : "this node has kv-encryption off"));
      EXPECT_FALSE(end->session.open());
    }
  }
}

TEST(SealedHandshakeTest, TwoOffersAtOnceGiveOneSetOfKeys) {
  End a("a"), b("b");
  const v1::KvHandshake from_a = a.OfferTo(b), from_b = b.OfferTo(a);
  const auto answer_of_b = b.session.OnHandshake(from_a, kNow);
  const auto answer_of_a = a.session.OnHandshake(from_b, kNow);
  ASSERT_OK(answer_of_a.status());
  ASSERT_OK(answer_of_b.status());
  ASSERT_NE(answer_of_a->has_value(), answer_of_b->has_value());
  End& initiator = answer_of_b->has_value() ? a : b;
  End& responder = answer_of_b->has_value() ? b : a;
  const v1::KvHandshake answer = answer_of_b->has_value() ? **answer_of_b : **answer_of_a;
  EXPECT_OK(initiator.session.OnHandshake(answer, kNow).status());
  EXPECT_EQ(*responder.Receive(initiator.Send(4)), 4u);
  EXPECT_EQ(*initiator.Receive(responder.Send(5)), 5u);
}

}  // namespace
}  // namespace tandem::transfer
