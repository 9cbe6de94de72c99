#include "common/transfer/local_socket.h"

#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

absl::Status LocalSocketError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

OwnedDescriptor NewLocalSocket(LocalSocketType type) {
  return OwnedDescriptor(
      ::socket(AF_UNIX, static_cast<int>(type) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// An abstract name begins with a zero byte.
absl::StatusOr<std::pair<sockaddr_un, socklen_t>> AbstractAddress(const std::string& name) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("the socket's name has ", name.size(),
                                                   " bytes, expected 1 to ",
                                                   sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return std::make_pair(address,
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

// One byte with a descriptor beside it.
struct DescriptorMessage {
  DescriptorMessage() {
    io = {.iov_base = &byte, .iov_len = 1};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = CMSG_LEN(sizeof(int));  // not CMSG_SPACE: it would have room for two
  }
  char byte = 0;
  iovec io;
  msghdr header = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace

absl::StatusOr<OwnedDescriptor> ListenLocal(const std::string& name, LocalSocketType type,
                                            int backlog) {
  ASSIGN_OR_RETURN(const auto address, AbstractAddress(name));
  OwnedDescriptor socket = NewLocalSocket(type);
  if (socket.get() < 0) return LocalSocketError("socket");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) !=
      0) {
    return LocalSocketError("bind");
  }
  if (::listen(socket.get(), backlog) != 0) return LocalSocketError("listen");
  return socket;
}

absl::StatusOr<OwnedDescriptor> ConnectLocal(const std::string& name, LocalSocketType type) {
  ASSIGN_OR_RETURN(const auto address, AbstractAddress(name));
  OwnedDescriptor socket = NewLocalSocket(type);
  if (socket.get() < 0) return LocalSocketError("socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) !=
      0) {
    if (errno == EAGAIN) return absl::ResourceExhaustedError("connecting: too many callers wait");
    return LocalSocketError("connecting to the owner's socket");
  }
  return socket;
}

bool IsOwnUser(int socket) {
  ucred user = {};
  socklen_t bytes = sizeof user;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &user, &bytes) == 0 &&
         user.uid == ::geteuid();
}

bool SendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

absl::StatusOr<std::optional<OwnedDescriptor>> ReceiveDescriptor(int socket) {
  DescriptorMessage message;
  const ssize_t got = ::recvmsg(socket, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<OwnedDescriptor>();
  const cmsghdr* rights = got >= 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(int))) {
    return absl::PermissionDeniedError("the other process gave no descriptor");
  }
  // It is this process's from here on, whatever it came with.
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
  OwnedDescriptor owned(descriptor);
  if (got != 1)
    return absl::PermissionDeniedError(
        absl::StrCat("the other process gave a descriptor with ", got, " bytes, expected 1"));
  return std::optional<OwnedDescriptor>(std::move(owned));
}

}  // namespace tandem::transfer
