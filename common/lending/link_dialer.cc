#include "common/lending/link_dialer.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/lending/link_address.h"
#include "common/transfer/local_socket.h"
#include "common/transfer/shared_ring_link.h"
#include "common/transfer/tcp_link.h"

namespace tandem::lending {
namespace {

using LinkOrError = absl::StatusOr<std::unique_ptr<transfer::MessageLink>>;

}  // namespace

absl::StatusOr<std::unique_ptr<LinkDialer>> LinkDialer::Start(const LinkDialerOptions& options,
                                                              const CreditorAddress& creditor,
                                                              absl::Time now) {
  ASSIGN_OR_RETURN(const LinkAddress address, ParseLinkAddress(creditor.lending_address));
  absl::Status why = absl::UnavailableError(absl::StrCat(
      "creditor ", creditor.node.value(), " on host ", creditor.host, " has no TCP address"));
  const std::string local = options.host == creditor.host ? address.local : "";
  for (const std::string& dialled : {local, address.tcp}) {
    if (dialled.empty()) continue;
    ASSIGN_OR_RETURN(DebtorHandshake handshake,
                     DebtorHandshake::Create(
                         options.fleet_secret,
                         {.debtor = options.self,
                          .creditor = {.node = creditor.node, .incarnation = creditor.incarnation},
                          .address = dialled}));
    std::unique_ptr<LinkDialer> dialer(
        new LinkDialer(std::move(handshake), dialled, now + kDialTime));
    const auto connected = dialer->Connect();
    if (connected.ok()) return dialer;
    why = connected.status();
  }
  return why;
}

absl::StatusOr<bool> LinkDialer::Connect() {
  auto socket = ConnectForLink(address_);
  if (absl::IsResourceExhausted(socket.status())) return false;
  RETURN_IF_ERROR(socket.status());
  if (IsLocalAddress(address_) && !transfer::IsOwnUser(socket->get())) {
    return absl::PermissionDeniedError("another user's process listens at the creditor's address");
  }
  socket_ = *std::move(socket);
  return true;
}

absl::StatusOr<bool> LinkDialer::IsConnected() const {
  pollfd wait = {.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&wait, 1, 0) != 1) return false;
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error == 0) return true;
  return absl::UnavailableError(
      absl::StrCat("connecting to ", address_, ": ", std::strerror(error)));
}

LinkOrError LinkDialer::AwaitAcceptance() {
  if (IsLocalAddress(address_)) {
    ASSIGN_OR_RETURN(const auto memory, transfer::ReceiveDescriptor(socket_.get()));
    if (!memory.has_value()) return nullptr;
    return transfer::SharedRingLink::Create(
        std::move(socket_), *memory, transfer::SharedRingLink::Side::kSecond, kLendingLinkLimits);
  }
  char accepted = 0;
  const ssize_t got = ::recv(socket_.get(), &accepted, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return nullptr;
  if (got != 1 || accepted != kLinkAccepted) {
    return absl::PermissionDeniedError("the creditor did not accept this node's proof");
  }
  const LinkKeys keys = handshake_.keys();
  return transfer::TcpLink::Create(
      std::move(socket_), {.send = keys.debtor_to_creditor, .receive = keys.creditor_to_debtor},
      kLendingLinkLimits);
}

LinkOrError LinkDialer::Poll(absl::Time now) {
  if (now >= give_up_) {
    return absl::DeadlineExceededError(
        absl::StrCat("no link to ", address_, " within ", absl::FormatDuration(kDialTime)));
  }
  if (state_ == State::kConnecting) {
    if (socket_.get() < 0) {
      ASSIGN_OR_RETURN(const bool has_socket, Connect());
      if (!has_socket) return nullptr;
    }
    ASSIGN_OR_RETURN(const bool is_connected, IsConnected());
    if (!is_connected) return nullptr;
    RETURN_IF_ERROR(SendFrame(socket_.get(), handshake_.hello()));
    state_ = State::kAwaitsChallenge;
  }
  if (state_ == State::kAwaitsChallenge) {
    ASSIGN_OR_RETURN(const auto challenge, reader_.Read(socket_.get()));
    if (!challenge.has_value()) return nullptr;
    ASSIGN_OR_RETURN(const std::string proof, handshake_.Prove(*challenge));
    RETURN_IF_ERROR(SendFrame(socket_.get(), proof));
    state_ = State::kAwaitsAcceptance;
  }
  return AwaitAcceptance();
}

}  // namespace tandem::lending
