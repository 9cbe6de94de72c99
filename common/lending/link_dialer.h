// Opens a debtor's link to one creditor: the other end of LinkListener.
// Thread safety: none; the engine thread. No call blocks. Owner: CreditorLinks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/lending/lending.h"
#include "common/lending/link_frames.h"
#include "common/lending/link_handshake.h"
#include "common/transfer/message_link.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::lending {

struct LinkDialerOptions {
  DebtorId self;
  std::string host;
  std::string fleet_secret;
};

class LinkDialer {
 public:
  // From Start to the link. A step waits for it no longer than for an answer, but the loans are
  // kept: one that is lost because a loaded machine was slow costs more.
  static constexpr absl::Duration kDialTime = absl::Seconds(3);

  // Begins to connect: over shared memory where both hosts are equal and the Unix socket can be
  // reached, otherwise over TCP. Errors: kInvalidArgument for an address that is none;
  // kUnavailable when no process listens, or when the creditor has no TCP address.
  static absl::StatusOr<std::unique_ptr<LinkDialer>> Start(const LinkDialerOptions& options,
                                                           const CreditorAddress& creditor,
                                                           absl::Time now);
  // The link, once; nullptr: not yet. Errors: kPermissionDenied when the creditor refused or does
  // not hold the secret; kDeadlineExceeded; kUnavailable.
  absl::StatusOr<std::unique_ptr<transfer::MessageLink>> Poll(absl::Time now);
  // Poll has something to do when it is readable, or writable while wants_write(). -1: try again
  // soon.
  int descriptor() const { return socket_.get(); }
  bool wants_write() const { return state_ == State::kConnecting; }

 private:
  enum class State { kConnecting, kAwaitsChallenge, kAwaitsAcceptance };

  LinkDialer(DebtorHandshake handshake, const std::string& address, absl::Time give_up)
      : handshake_(std::move(handshake)), address_(address), give_up_(give_up) {}
  // Whether the socket is there; it is not while too many callers wait at the creditor.
  absl::StatusOr<bool> Connect();
  absl::StatusOr<bool> IsConnected() const;
  absl::StatusOr<std::unique_ptr<transfer::MessageLink>> AwaitAcceptance();

  DebtorHandshake handshake_;
  const std::string address_;
  const absl::Time give_up_;
  transfer::OwnedDescriptor socket_;
  FrameReader reader_;
  State state_ = State::kConnecting;
};

}  // namespace tandem::lending
