#include "common/transfer/key_agreement.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/keyed_tag.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"

namespace tandem::transfer {
namespace {

constexpr size_t kAgreementNonceBytes = 32;
constexpr size_t kPublicKeyBytes = 32;
constexpr size_t kIdentityBytes = SHA256_DIGEST_LENGTH;
constexpr char kOfferPurpose[] = "kv handshake offer";
constexpr char kRefusalPurpose[] = "kv handshake refusal";
constexpr char kProofPurpose[] = "kv handshake answer";

std::string Sha256(absl::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

absl::string_view AsView(absl::Span<const uint8_t> bytes) {
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// All parts have a fixed length, so no two messages look alike.
std::string Content(const v1::KvHandshake& message) {
  return absl::StrCat(message.nonce(), message.public_key(), message.sender(), message.receiver(),
                      message.encrypts() ? "e" : "p");
}

bool IsWellFormed(const v1::KvHandshake& message) {
  return message.nonce().size() == kAgreementNonceBytes &&
         message.public_key().size() == kPublicKeyBytes &&
         message.sender().size() == kIdentityBytes && message.receiver().size() == kIdentityBytes &&
         message.tag().size() == kKeyedTagBytes;
}

std::string Transcript(const v1::KvHandshake& offer, const v1::KvHandshake& answer) {
  return Sha256(absl::StrCat("tandem kv handshake 1", Content(offer), Content(answer)));
}

}  // namespace

std::string TransportIdentity(absl::string_view address) { return Sha256(address); }

void KeyAgreement::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

KeyAgreement::PrivateKey KeyAgreement::NewKey(std::string& public_key) {
  PrivateKey key(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"));
  TANDEM_CHECK(key != nullptr, "OpenSSL has no X25519");
  public_key.assign(kPublicKeyBytes, '\0');
  size_t size = public_key.size();
  TANDEM_CHECK(EVP_PKEY_get_raw_public_key(
                   key.get(), reinterpret_cast<unsigned char*>(public_key.data()), &size) == 1 &&
               size == kPublicKeyBytes);
  return key;
}

absl::StatusOr<KeyAgreement::Derived> KeyAgreement::Derive(const PrivateKey& own,
                                                           const v1::KvHandshake& other,
                                                           const std::string& transcript) const {
  const PrivateKey peer(EVP_PKEY_new_raw_public_key(
      EVP_PKEY_X25519, nullptr, reinterpret_cast<const unsigned char*>(other.public_key().data()),
      other.public_key().size()));
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
      EVP_PKEY_CTX_new(own.get(), nullptr), &EVP_PKEY_CTX_free);
  SecretKey shared;
  size_t size = shared.bytes().size();
  // Fails for a key that makes the secret all zeros.
  if (peer == nullptr || context == nullptr || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), peer.get()) != 1 ||
      EVP_PKEY_derive(context.get(), shared.mutable_bytes().data(), &size) != 1 ||
      size != shared.bytes().size()) {
    return absl::InvalidArgumentError("the handshake's public key is of no use");
  }
  std::string input = absl::StrCat(AsView(shared.bytes()), options_.fleet_secret);
  const SecretKey root = HkdfExtract(transcript, input);
  OPENSSL_cleanse(input.data(), input.size());
  const SecretKey proof_key = HkdfExpand(root, "tandem kv proof");
  return Derived{.secrets = {.to_responder = HkdfExpand(root, "tandem kv to responder"),
                             .to_initiator = HkdfExpand(root, "tandem kv to initiator")},
                 .proof = KeyedTag(AsView(proof_key.bytes()), kProofPurpose, transcript)};
}

// ---- Initiator ------------------------------------------------------------------------------

std::string KeyAgreement::OfferTag(absl::string_view fleet_secret, const v1::KvHandshake& offer) {
  return KeyedTag(fleet_secret, kOfferPurpose, Content(offer));
}

v1::KvHandshake KeyAgreement::Offer(const std::string& peer) {
  offer_.set_kind(v1::KvHandshake::OFFER);
  offer_.set_nonce(SecretBytes(kAgreementNonceBytes));
  key_ = NewKey(*offer_.mutable_public_key());
  offer_.set_sender(options_.identity);
  offer_.set_receiver(peer);
  offer_.set_encrypts(options_.encrypts);
  offer_.set_tag(OfferTag(options_.fleet_secret, offer_));
  return offer_;
}

absl::StatusOr<DirectionSecrets> KeyAgreement::Finish(const v1::KvHandshake& answer) const {
  if (!IsWellFormed(answer)) return absl::InvalidArgumentError("an ANSWER does not parse");
  if (!has_offered() || answer.sender() != offer_.receiver() ||
      answer.receiver() != offer_.sender() || answer.encrypts() != offer_.encrypts()) {
    return absl::PermissionDeniedError("an ANSWER is not to this end's OFFER");
  }
  ASSIGN_OR_RETURN(Derived derived, Derive(key_, answer, Transcript(offer_, answer)));
  if (CRYPTO_memcmp(derived.proof.data(), answer.tag().data(), derived.proof.size()) != 0) {
    return absl::PermissionDeniedError(
        "an ANSWER's proof is wrong: of another fleet-secret-file, or to another OFFER");
  }
  return std::move(derived.secrets);
}

absl::Status KeyAgreement::WhyRefused(const v1::KvHandshake& refusal) const {
  if (!IsWellFormed(refusal) || !has_offered() || refusal.nonce() != offer_.nonce() ||
      refusal.sender() != offer_.receiver() ||
      !IsKeyedTag(refusal.tag(), options_.fleet_secret, kRefusalPurpose, Content(refusal))) {
    return absl::PermissionDeniedError("a REFUSAL is not to this end's OFFER");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this node has kv-encryption ", options_.encrypts ? "on" : "off", ", the peer has it ",
      refusal.encrypts() ? "on" : "off", "; all nodes of a fleet need the same"));
}

// ---- Responder ------------------------------------------------------------------------------

absl::Status KeyAgreement::Check(const v1::KvHandshake& offer) const {
  if (!IsWellFormed(offer)) return absl::InvalidArgumentError("an OFFER does not parse");
  if (offer.receiver() != options_.identity || offer.sender() == options_.identity) {
    return absl::PermissionDeniedError("an OFFER is for another process");
  }
  if (!IsKeyedTag(offer.tag(), options_.fleet_secret, kOfferPurpose, Content(offer))) {
    return absl::PermissionDeniedError("an OFFER is of a process with another fleet-secret-file");
  }
  return absl::OkStatus();
}

absl::StatusOr<KeyAgreement::Answer> KeyAgreement::Respond(const v1::KvHandshake& offer) const {
  Answer answer;
  answer.message.set_kind(v1::KvHandshake::ANSWER);
  answer.message.set_nonce(SecretBytes(kAgreementNonceBytes));
  const PrivateKey key = NewKey(*answer.message.mutable_public_key());
  answer.message.set_sender(options_.identity);
  answer.message.set_receiver(offer.sender());
  answer.message.set_encrypts(options_.encrypts);
  ASSIGN_OR_RETURN(Derived derived, Derive(key, offer, Transcript(offer, answer.message)));
  answer.message.set_tag(derived.proof);
  answer.secrets = derived.secrets;
  return answer;
}

v1::KvHandshake KeyAgreement::Refuse(const v1::KvHandshake& offer) const {
  v1::KvHandshake refusal;
  refusal.set_kind(v1::KvHandshake::REFUSAL);
  refusal.set_nonce(offer.nonce());
  refusal.set_public_key(offer.public_key());
  refusal.set_sender(options_.identity);
  refusal.set_receiver(offer.sender());
  refusal.set_encrypts(options_.encrypts);
  refusal.set_tag(KeyedTag(options_.fleet_secret, kRefusalPurpose, Content(refusal)));
  return refusal;
}

}  // namespace tandem::transfer
