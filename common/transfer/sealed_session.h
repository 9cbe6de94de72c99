// One sealed connection: agrees on its keys with the other end (key_agreement.h), then seals and
// opens its frames. It sends nothing itself.
//
//   state      means                                      frames
//   kNew       nothing was said yet                       wait
//   kOffered   this end sent an OFFER                     wait
//   kAnswered  this end sent an ANSWER                    wait for the first authentic one
//   kOpen      both ends hold the keys                    go both ways
//
// When both ends send an OFFER at the same time, the one of the smaller identity counts. An OFFER
// to an open connection is refused: each connection has one handshake, so a recorded one is of no
// use.
//
// Invariants: it opens a frame once, and only if the other end of this very connection sealed it
// for this direction. Thread safety: none; the transfer thread. Owner: the SealedTransport.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transfer/key_agreement.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/session_keys.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

class SealedSession {
 public:
  struct Options {
    KeyAgreement::Options agreement;
    KeyLimits limits;
  };
  // `options` outlives it.
  explicit SealedSession(const Options& options)
      : options_(options), agreement_(options.agreement) {}

  // What to send to the end with identity `peer`. REQUIRES: nothing was said yet.
  v1::KvHandshake Offer(const std::string& peer);
  // What to answer, if anything. An error means that the message was refused and changed nothing.
  absl::StatusOr<std::optional<v1::KvHandshake>> OnHandshake(const v1::KvHandshake& message,
                                                             absl::Time now);
  bool open() const { return state_ == State::kOpen; }
  // Why this connection will never open: kFailedPrecondition with what to tell the operator. OK as
  // long as it may.
  const absl::Status& failure() const { return failure_; }

  // Seals `frame`; null for a message that only confirms the keys. Where payloads are encrypted,
  // the encrypted one goes to `sealed_payload`, as many bytes. kResourceExhausted when the
  // connection has sent all that its handshake allows. REQUIRES: open().
  absl::StatusOr<v1::KvSealed> Seal(const v1::KvFrame* frame, const GatherList& payload,
                                    std::byte* sealed_payload, absl::Time now);

  // Opens one payload, once it has landed.
  struct PayloadKey {
    ReceivingKeys::SharedCipher cipher;
    uint64_t sequence = 0;
    std::string tag;

    // Decrypts in place; false when the payload is not what was sealed.
    bool Open(const ScatterList& bytes) const;
  };
  struct Opened {
    std::optional<v1::KvFrame> frame;   // none: the message only confirmed the keys
    std::optional<PayloadKey> payload;  // none: there is none, or it is not encrypted
  };
  // `payload_bytes` is the length of what follows the message. Errors: kPermissionDenied for what
  // the other end did not seal; kAlreadyExists for what came before, or comes too late to tell;
  // kInvalidArgument for a frame that does not parse.
  absl::StatusOr<Opened> Open(const v1::KvSealed& sealed, size_t payload_bytes);

 private:
  enum class State { kNew, kOffered, kAnswered, kOpen };

  bool encrypts() const { return options_.agreement.encrypts; }
  absl::StatusOr<std::optional<v1::KvHandshake>> OnOffer(const v1::KvHandshake& offer,
                                                         absl::Time now);

  const Options& options_;
  KeyAgreement agreement_;
  State state_ = State::kNew;
  absl::Status failure_;
  int answers_ = 0;
  std::string answered_nonce_;  // of the OFFER that answer_ answers
  v1::KvHandshake answer_;
  // From kAnswered on.
  std::unique_ptr<SendingKeys> sending_;
  std::unique_ptr<ReceivingKeys> receiving_;
};

}  // namespace tandem::transfer
