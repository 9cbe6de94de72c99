// Lets debtors connect to a creditor: over an abstract Unix socket, which gives a link over shared
// memory, and over TCP. A caller that does not complete the handshake (link_handshake.h) in
// kCallerTime gets no further; over a Unix socket it must also run as the same user. A process that
// holds no secret could take all places for that time, so the address with the most callers gives
// one up for another: a flood from one address costs only callers of that address.
// Thread safety: none; the lending thread. No call blocks. Owner: LendingService.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/lending/lending.h"
#include "common/lending/link_address.h"
#include "common/lending/link_frames.h"
#include "common/lending/link_handshake.h"
#include "common/transfer/message_link.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::lending {

struct LinkListenerOptions {
  DebtorId self;  // this node
  std::string fleet_secret;
  std::string tcp_host;  // as LendingServiceOptions::tcp_host
};

class LinkListener {
 public:
  // For one beyond it, the oldest of the address with the most callers goes.
  static constexpr size_t kCallersMax = 16;
  static constexpr absl::Duration kCallerTime = absl::Seconds(1);

  struct NewLink {
    DebtorId debtor;
    std::unique_ptr<transfer::MessageLink> link;
  };

  // Errors: kInvalidArgument for a tcp_host that is no IP address; kUnavailable when the system
  // gives no socket.
  static absl::StatusOr<std::unique_ptr<LinkListener>> Start(const LinkListenerOptions& options);

  // For CreditorAddress::lending_address.
  const std::string& address() const { return address_; }
  // Takes callers and goes on with their handshakes; returns the links that are complete.
  std::vector<NewLink> Progress(absl::Time now);
  // Readable when Progress has something to do.
  int descriptor() const { return epoll_.get(); }
  // When it has something to do by itself.
  absl::Time next_time() const;
  // Callers that did not become a link.
  int64_t refused() const { return refused_; }

 private:
  struct Caller {
    transfer::OwnedDescriptor socket;
    bool is_local;
    std::string source;  // its IP address
    CreditorHandshake handshake;
    FrameReader reader;
    absl::Time give_up;
    bool is_challenged = false;
  };

  explicit LinkListener(const LinkListenerOptions& options) : options_(options) {}
  absl::Status Watch(int socket);
  void WatchListeners(bool watch);
  void Accept(const ListeningSocket& listener, absl::Time now);
  // Ends a caller of the address that has the most: the oldest one that has said nothing yet, or
  // else the oldest. Of several such addresses, of all theirs.
  void MakePlace(absl::Time now);
  // Whether the handshake is complete.
  absl::StatusOr<bool> GoOn(Caller& caller);
  absl::StatusOr<NewLink> MakeLink(Caller& caller);
  void Refuse(const absl::Status& why, absl::Time now);

  const LinkListenerOptions options_;
  std::string address_;
  transfer::OwnedDescriptor epoll_;
  // Bound: 2, the kinds of links.
  std::vector<ListeningSocket> listeners_;
  bool watches_listeners_ = true;
  // When the system gave no descriptor for a caller: until when no more are taken.
  absl::Time accept_again_ = absl::InfinitePast();
  // The oldest first. Bound: kCallersMax (16), then MakePlace.
  std::vector<Caller> callers_;
  int64_t refused_ = 0;
  absl::Time log_again_ = absl::InfinitePast();
};

}  // namespace tandem::lending
