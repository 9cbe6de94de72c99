// A KvTransport that lets two ends of another transport trust what arrives: each connection agrees
// on keys of its own (key_agreement.h), and every frame travels inside a KvSealed message with a
// tag under them, or is dropped and counted. What is forged, repeated, sent back to its sender,
// moved to another connection, or older than the window (session_keys.h) never reaches the
// listener.
//
// With `encrypts`, frames and payloads are encrypted with AES-256-GCM as well. A payload is
// encrypted into the buffer that it is sent from, and decrypted in the place where it landed,
// before the listener hears of it; one whose tag is wrong ends as kDataLoss. The tag does the work
// of the payload's checksum, which is then not computed. Payloads must lie in host memory. Without
// `encrypts`, payloads travel as they are; their checksum is in the frame, under its tag.
//
// Frames that are sent before the keys are agreed wait, as they do for the other transport's
// connection. Beyond `sealed_bytes_max` of encrypted payloads in flight further payloads wait, in
// order. A connection whose handshake is not over within `agree_within`, whose ends do not agree on
// encryption, or whose numbers are used up, is lost.
//
// Thread safety: as KvTransport. Owner: TransferService.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/transfer/kv_transport.h"
#include "common/transfer/session_keys.h"

namespace tandem::transfer {

struct SealedTransportOptions {
  std::string fleet_secret;
  bool encrypts = false;
  KeyLimits limits;
  absl::Duration agree_within = absl::Seconds(10);
  int64_t sealed_bytes_max = int64_t{256} << 20;
  const Clock* clock = &RealClock();
};

std::unique_ptr<KvTransport> NewSealedTransport(const SealedTransportOptions& options,
                                                std::unique_ptr<KvTransport> other);

}  // namespace tandem::transfer
