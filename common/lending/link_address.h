// Where a creditor's lending thread can be reached: an abstract Unix socket for debtors of the same
// host, and a TCP port for others. As a text: "unix:NAME" or "unix:NAME tcp:ADDRESS:PORT", with an
// IPv6 address in brackets.
// Thread safety: pure functions. No call blocks: hosts are numbers, not names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::lending {

struct LinkAddress {
  std::string local;  // "unix:NAME"
  std::string tcp;    // "tcp:ADDRESS:PORT"; empty: debtors of this host only
};

inline constexpr size_t kLinkAddressBytesMax = 256;

std::string FormatLinkAddress(const LinkAddress& address);
// Errors: kInvalidArgument.
absl::StatusOr<LinkAddress> ParseLinkAddress(absl::string_view text);

// A socket that listens, and one of LinkAddress's two parts.
struct ListeningSocket {
  transfer::OwnedDescriptor socket;
  std::string address;
};
// A new name. Errors: kUnavailable.
absl::StatusOr<ListeningSocket> ListenForLocalLinks(int backlog);
// `host`: an IP address; the kernel chooses the port. Errors: kInvalidArgument when it is none;
// kUnavailable when it is not this machine's, or the system gives no socket.
absl::StatusOr<ListeningSocket> ListenForTcpLinks(const std::string& host, int backlog);

// Begins to connect to one of LinkAddress's two parts. Over TCP the socket is writable when it is
// connected or has failed. Errors: kInvalidArgument; kResourceExhausted when too many callers wait
// there, which passes; kUnavailable when no process listens.
absl::StatusOr<transfer::OwnedDescriptor> ConnectForLink(const std::string& address);

// Whether `address` is a Unix socket's.
bool IsLocalAddress(absl::string_view address);

}  // namespace tandem::lending
