// How the two ends of a KV connection agree on its keys, and prove to each other that they hold the
// fleet's secret.
//
//   initiator                                   responder
//   OFFER: nonce, X25519 key, both identities  ──▶  is the offer for me, and of my fleet?
//                                              ◀──  ANSWER: nonce, X25519 key, proof
//   first sealed frame                         ──▶  the initiator holds the keys: open
//
// The keys come by HKDF from the X25519 secret, which both ends forget, and the fleet's secret,
// over all that both sides said. So they are fresh for each connection and bound to both
// identities, both directions and to whether payloads are encrypted; and who learns the fleet's
// secret later cannot open what was recorded. An end's identity is the hash of its transport
// address, which is unique to one process.
//
// An offer carries a tag under the fleet's secret, so that a stranger's costs one HMAC. It proves
// nothing about now: a recorded offer is answered, at the price of an X25519 exchange, and then its
// sender cannot confirm the answer. The proof in an ANSWER is made with the new keys, over the
// initiator's fresh nonce. With an empty fleet secret strangers can take part; who only listens
// learns nothing then either.
//
// Thread safety: KeyAgreement none; functions pure. Owner: SealedSession.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transfer/session_keys.h"
#include "tandem/v1/kv.pb.h"

struct evp_pkey_st;  // OpenSSL's EVP_PKEY

namespace tandem::transfer {

// SHA-256 of a transport's address.
std::string TransportIdentity(absl::string_view address);

struct DirectionSecrets {
  SecretKey to_responder, to_initiator;
};

class KeyAgreement {
 public:
  struct Options {
    std::string fleet_secret;
    std::string identity;  // of this end
    bool encrypts = false;
  };
  // `options` outlives it.
  explicit KeyAgreement(const Options& options) : options_(options) {}
  // Of an OFFER, by a holder of the secret.
  static std::string OfferTag(absl::string_view fleet_secret, const v1::KvHandshake& offer);

  // Initiator: what to send to the end with identity `peer`.
  v1::KvHandshake Offer(const std::string& peer);
  bool has_offered() const { return !offer_.nonce().empty(); }
  const v1::KvHandshake& offer() const { return offer_; }
  // Initiator: the keys, when `answer` is a right one to the offer. Errors: kInvalidArgument for a
  // malformed one, kPermissionDenied for one that is not of this fleet or not to this offer.
  absl::StatusOr<DirectionSecrets> Finish(const v1::KvHandshake& answer) const;
  // Initiator: kFailedPrecondition with what to tell the operator, when `refusal` is a right one to
  // the offer; else kPermissionDenied.
  absl::Status WhyRefused(const v1::KvHandshake& refusal) const;

  // Responder: whether `offer` is for this end, and of this fleet.
  absl::Status Check(const v1::KvHandshake& offer) const;
  struct Answer {
    v1::KvHandshake message;
    DirectionSecrets secrets;
  };
  // Responder: kInvalidArgument for an offer whose key is of no use. REQUIRES: Check(offer) is OK,
  // and both ends agree on encryption.
  absl::StatusOr<Answer> Respond(const v1::KvHandshake& offer) const;
  // Responder: tells the initiator that the two ends do not agree on encryption.
  v1::KvHandshake Refuse(const v1::KvHandshake& offer) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using PrivateKey = std::unique_ptr<evp_pkey_st, Free>;
  static PrivateKey NewKey(std::string& public_key);
  struct Derived {
    DirectionSecrets secrets;
    std::string proof;
  };
  absl::StatusOr<Derived> Derive(const PrivateKey& own, const v1::KvHandshake& other,
                                 const std::string& transcript) const;

  const Options& options_;
  v1::KvHandshake offer_;
  PrivateKey key_;  // behind offer_
};

}  // namespace tandem::transfer
