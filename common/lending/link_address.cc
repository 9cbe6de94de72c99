#include "common/lending/link_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "common/transfer/local_socket.h"

namespace tandem::lending {
namespace {

using transfer::OwnedDescriptor;

constexpr absl::string_view kLocalPrefix = "unix:";
constexpr absl::string_view kTcpPrefix = "tcp:";
constexpr size_t kNameRandomBytes = 12;

absl::Status LinkSystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// getaddrinfo with numbers only: it asks no name server.
absl::StatusOr<SocketAddress> NumericAddress(const std::string& host, const std::string& port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (code != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", host, "\" port \"", port, "\" is no IP address and port: ", ::gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  SocketAddress address;
  address.bytes = found->ai_addrlen;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  return address;
}

OwnedDescriptor NewTcpSocket(const SocketAddress& address) {
  return OwnedDescriptor(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

uint16_t PortOf(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    sockaddr_in6 six;
    std::memcpy(&six, &address.storage, sizeof six);
    return ntohs(six.sin6_port);
  }
  sockaddr_in four;
  std::memcpy(&four, &address.storage, sizeof four);
  return ntohs(four.sin_port);
}

absl::StatusOr<OwnedDescriptor> ConnectTcp(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" has no port"));
  }
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" has no ]"));
  }
  ASSIGN_OR_RETURN(const SocketAddress address,
                   NumericAddress(std::string(host), std::string(text.substr(colon + 1))));
  OwnedDescriptor socket = NewTcpSocket(address);
  if (socket.get() < 0) return LinkSystemError("socket");
  if (::connect(socket.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    return LinkSystemError("connect");
  }
  return socket;
}

}  // namespace

std::string FormatLinkAddress(const LinkAddress& address) {
  return address.tcp.empty() ? address.local : absl::StrCat(address.local, " ", address.tcp);
}

absl::StatusOr<LinkAddress> ParseLinkAddress(absl::string_view text) {
  LinkAddress address;
  const size_t space = text.find(' ');
  address.local = std::string(text.substr(0, space));
  if (space != absl::string_view::npos) address.tcp = std::string(text.substr(space + 1));
  const bool has_tcp = space != absl::string_view::npos;
  if (text.size() > kLinkAddressBytesMax || !absl::StartsWith(address.local, kLocalPrefix) ||
      (has_tcp && !absl::StartsWith(address.tcp, kTcpPrefix))) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, kLinkAddressBytesMax),
                     "\" is no lending address, expected unix:NAME [tcp:ADDRESS:PORT]"));
  }
  return address;
}

absl::StatusOr<ListeningSocket> ListenForLocalLinks(int backlog) {
  const std::string name =
      absl::StrCat("tandem-lending-", absl::BytesToHexString(SecretBytes(kNameRandomBytes)));
  ASSIGN_OR_RETURN(OwnedDescriptor socket,
                   transfer::ListenLocal(name, transfer::LocalSocketType::kStream, backlog));
  return ListeningSocket{.socket = std::move(socket), .address = absl::StrCat(kLocalPrefix, name)};
}

absl::StatusOr<ListeningSocket> ListenForTcpLinks(const std::string& host, int backlog) {
  ASSIGN_OR_RETURN(SocketAddress address, NumericAddress(host, "0"));
  OwnedDescriptor socket = NewTcpSocket(address);
  if (socket.get() < 0) return LinkSystemError("socket");
  if (::bind(socket.get(), address.get(), address.bytes) != 0) return LinkSystemError("bind");
  if (::listen(socket.get(), backlog) != 0) return LinkSystemError("listen");
  if (::getsockname(socket.get(), address.get(), &address.bytes) != 0) {
    return LinkSystemError("getsockname");
  }
  const std::string shown = absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host;
  return ListeningSocket{.socket = std::move(socket),
                         .address = absl::StrCat(kTcpPrefix, shown, ":", PortOf(address))};
}

absl::StatusOr<OwnedDescriptor> ConnectForLink(const std::string& address) {
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, kLocalPrefix)) {
    return transfer::ConnectLocal(std::string(rest), transfer::LocalSocketType::kStream);
  }
  if (absl::ConsumePrefix(&rest, kTcpPrefix)) return ConnectTcp(rest);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", address, "\" begins with neither unix: nor tcp:"));
}

bool IsLocalAddress(absl::string_view address) { return absl::StartsWith(address, kLocalPrefix); }

}  // namespace tandem::lending
