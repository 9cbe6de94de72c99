#include "common/transfer/sealed_session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

// OFFERs that one connection answers before it opens: each costs an X25519 exchange.
constexpr int kAnswersMax = 16;

template <typename Number>
void AppendBytes(std::string& out, Number value) {
  for (size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// What a header's tag covers beside the encrypted frame. The payload's tag has its length by rule
// (none, or kCipherTagBytes), so its end is clear.
std::string ClearPart(const v1::KvSealed& sealed, size_t payload_bytes, bool encrypts) {
  std::string bytes;
  AppendBytes(bytes, sealed.generation());
  AppendBytes(bytes, uint64_t{payload_bytes});
  absl::StrAppend(&bytes, sealed.payload_tag(), encrypts ? "" : sealed.frame());
  return bytes;
}

std::string ToString(const FrameCipher::Tag& tag) { return std::string(tag.begin(), tag.end()); }

}  // namespace

v1::KvHandshake SealedSession::Offer(const std::string& peer) {
  TANDEM_CHECK(state_ == State::kNew);
  state_ = State::kOffered;
  return agreement_.Offer(peer);
}

absl::StatusOr<std::optional<v1::KvHandshake>> SealedSession::OnOffer(const v1::KvHandshake& offer,
                                                                      absl::Time now) {
  RETURN_IF_ERROR(agreement_.Check(offer));
  if (state_ == State::kOpen) {
    return absl::AlreadyExistsError("an OFFER came to an open connection: it was sent before");
  }
  const bool offers_win = options_.agreement.identity < offer.sender();
  if (state_ == State::kOffered && offers_win) return std::optional<v1::KvHandshake>();
  if (offer.encrypts() != encrypts()) {
    failure_ = absl::FailedPreconditionError(
        absl::StrCat("this node has kv-encryption ", encrypts() ? "on" : "off",
                     ", the peer that connects has it ", offer.encrypts() ? "on" : "off",
                     "; all nodes of a fleet need the same"));
    return std::optional<v1::KvHandshake>(agreement_.Refuse(offer));
  }
  // Repeated on its way: other keys would leave the initiator alone with the first ones.
  if (state_ == State::kAnswered && offer.nonce() == answered_nonce_) {
    return std::optional<v1::KvHandshake>(answer_);
  }
  if (++answers_ > kAnswersMax) {
    return absl::ResourceExhaustedError(absl::StrCat("the connection has answered ", kAnswersMax,
                                                     " OFFERs, and none was confirmed"));
  }
  ASSIGN_OR_RETURN(KeyAgreement::Answer answer, agreement_.Respond(offer));
  sending_ = std::make_unique<SendingKeys>(answer.secrets.to_initiator, options_.limits, now);
  receiving_ = std::make_unique<ReceivingKeys>(answer.secrets.to_responder);
  state_ = State::kAnswered;
  answered_nonce_ = offer.nonce();
  answer_ = std::move(answer.message);
  return std::optional<v1::KvHandshake>(answer_);
}

absl::StatusOr<std::optional<v1::KvHandshake>> SealedSession::OnHandshake(
    const v1::KvHandshake& message, absl::Time now) {
  if (message.kind() == v1::KvHandshake::OFFER) return OnOffer(message, now);
  if (state_ != State::kOffered) {
    return absl::AlreadyExistsError("a handshake's answer came to an end that awaits none");
  }
  if (message.kind() == v1::KvHandshake::ANSWER) {
    ASSIGN_OR_RETURN(const DirectionSecrets secrets, agreement_.Finish(message));
    sending_ = std::make_unique<SendingKeys>(secrets.to_responder, options_.limits, now);
    receiving_ = std::make_unique<ReceivingKeys>(secrets.to_initiator);
    state_ = State::kOpen;
    return std::optional<v1::KvHandshake>();
  }
  if (message.kind() == v1::KvHandshake::REFUSAL) {
    const absl::Status why = agreement_.WhyRefused(message);
    if (!absl::IsFailedPrecondition(why)) return why;
    failure_ = why;
    return std::optional<v1::KvHandshake>();
  }
  return absl::InvalidArgumentError("unknown kind of handshake message");
}

absl::StatusOr<v1::KvSealed> SealedSession::Seal(const v1::KvFrame* frame,
                                                 const GatherList& payload,
                                                 std::byte* sealed_payload, absl::Time now) {
  TANDEM_CHECK(open());
  const size_t payload_bytes = Bytes(payload);
  ASSIGN_OR_RETURN(const SendingKeys::Stamp stamp,
                   sending_->Next(static_cast<int64_t>(payload_bytes), now));
  v1::KvSealed sealed;
  sealed.set_generation(stamp.generation);
  sealed.set_sequence(stamp.sequence);
  if (encrypts() && payload_bytes > 0) {
    sealed.set_payload_tag(ToString(stamp.cipher->Seal(
        {FrameCipher::Part::kPayload, stamp.sequence}, "", payload, sealed_payload)));
  }
  std::string bytes = frame == nullptr ? "" : frame->SerializeAsString();
  const FrameCipher::Nonce nonce = {FrameCipher::Part::kHeader, stamp.sequence};
  if (encrypts()) {
    std::string& out = *sealed.mutable_frame();
    out.resize(bytes.size());
    const auto* plain = reinterpret_cast<const std::byte*>(bytes.data());
    sealed.set_tag(ToString(stamp.cipher->Seal(nonce, ClearPart(sealed, payload_bytes, true),
                                               {absl::MakeConstSpan(plain, bytes.size())},
                                               reinterpret_cast<std::byte*>(out.data()))));
  } else {
    sealed.set_frame(std::move(bytes));
    sealed.set_tag(
        ToString(stamp.cipher->Seal(nonce, ClearPart(sealed, payload_bytes, false), {}, nullptr)));
  }
  return sealed;
}

absl::StatusOr<SealedSession::Opened> SealedSession::Open(const v1::KvSealed& sealed,
                                                          size_t payload_bytes) {
  if (receiving_ == nullptr) return absl::PermissionDeniedError("a frame came before its keys");
  const ReceivingKeys::SharedCipher cipher = receiving_->Find(sealed.generation());
  if (cipher == nullptr || !receiving_->Takes(sealed.sequence())) {
    return absl::AlreadyExistsError(absl::StrCat("frame ", sealed.sequence(), " of generation ",
                                                 sealed.generation(),
                                                 " came before, or too late to tell"));
  }
  const size_t tag_bytes = encrypts() && payload_bytes > 0 ? kCipherTagBytes : 0;
  std::string bytes = sealed.frame();
  ScatterList encrypted;
  if (encrypts()) {
    encrypted.push_back(absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
  }
  if (sealed.payload_tag().size() != tag_bytes ||
      !cipher->Open({FrameCipher::Part::kHeader, sealed.sequence()},
                    ClearPart(sealed, payload_bytes, encrypts()), encrypted, sealed.tag())) {
    return absl::PermissionDeniedError("a frame's tag is not of this connection's peer");
  }
  receiving_->Accept(sealed.generation(), sealed.sequence());
  state_ = State::kOpen;
  Opened opened;
  if (bytes.empty() && payload_bytes == 0) return opened;
  opened.frame.emplace();
  if (!opened.frame->ParseFromString(bytes)) {
    return absl::InvalidArgumentError("an authentic frame does not parse");
  }
  if (tag_bytes > 0) {
    opened.payload =
        PayloadKey{.cipher = cipher, .sequence = sealed.sequence(), .tag = sealed.payload_tag()};
  }
  return opened;
}

bool SealedSession::PayloadKey::Open(const ScatterList& bytes) const {
  return cipher->Open({FrameCipher::Part::kPayload, sequence}, "", bytes, tag);
}

}  // namespace tandem::transfer
