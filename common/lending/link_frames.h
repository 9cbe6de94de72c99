// Handshake messages on a socket: two bytes of length in front of each. A reader takes exactly one
// message's bytes, so that what follows on the socket stays for the link.
// Thread safety: none; the owner of the socket. No call blocks.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transfer/message_link.h"

namespace tandem::lending {

// The size of every lending link's messages and rings. Questions and answers of a usual step take
// kilobytes; long prompts' are cut (question_plan.h). Four calls of the longest messages fit into a
// ring, so a peer that keeps to kLinkCallsMax never finds it full.
inline constexpr transfer::LinkLimits kLendingLinkLimits = {.message_bytes_max = size_t{1} << 20,
                                                            .ring_bytes = size_t{1} << 23};
inline constexpr size_t kLinkCallsMax = 4;

// What the creditor sends over TCP when it accepts the debtor; over a Unix socket the byte with the
// descriptor stands for it.
inline constexpr char kLinkAccepted = 1;

// Errors: kUnavailable when the socket does not take all of it, which a new socket does.
absl::Status SendFrame(int socket, absl::string_view message);

class FrameReader {
 public:
  // The next message; nullopt: not all of it is there. Errors: kUnavailable when the other end has
  // closed; kInvalidArgument for a message of more than kHandshakeBytesMax.
  absl::StatusOr<std::optional<std::string>> Read(int socket);

 private:
  // Bound: kHandshakeBytesMax and the length.
  std::string bytes_;
};

}  // namespace tandem::lending
