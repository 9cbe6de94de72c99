#include "common/transfer/arena_descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/keyed_tag.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "common/telemetry/log.h"

namespace tandem::transfer {
namespace {

constexpr char kPurpose[] = "kv arena";
constexpr size_t kTicketBytes = 16;
constexpr size_t kNameBytesRandom = 12;
constexpr size_t kProofBytes = sizeof(uint64_t) + kKeyedTagBytes;
constexpr size_t kCallersMax = 16;
constexpr absl::Duration kCallerTime = absl::Seconds(1);
constexpr int kSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status SystemError(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
}

OwnedDescriptor NewSocket() {
  // Each message is whole: a proof is there, or is not.
  return OwnedDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// An abstract name: it begins with a zero byte and needs no file. kInvalidArgument when too long.
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

bool IsOwnUser(int socket) {
  ucred user = {};
  socklen_t bytes = sizeof user;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &user, &bytes) == 0 &&
         user.uid == ::geteuid();
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

bool SendDescriptor(int socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace

OwnedDescriptor::~OwnedDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

// ---- the owner's end ------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ArenaDescriptorServer>> ArenaDescriptorServer::Start(
    const std::string& secret, int descriptor) {
  std::unique_ptr<ArenaDescriptorServer> server(new ArenaDescriptorServer(secret, descriptor));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status ArenaDescriptorServer::Listen() {
  name_ = absl::StrCat("tandem-kv-", absl::BytesToHexString(SecretBytes(kNameBytesRandom)));
  ASSIGN_OR_RETURN(const auto address, AbstractAddress(name_));
  listener_ = NewSocket();
  if (listener_.get() < 0) return SystemError("socket");
  if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) !=
      0) {
    return SystemError("bind");
  }
  if (::listen(listener_.get(), static_cast<int>(kCallersMax)) != 0) return SystemError("listen");
  return absl::OkStatus();
}

std::string ArenaDescriptorServer::MakeTicket(uint64_t number) {
  std::string ticket = SecretBytes(kTicketBytes);
  tickets_[number] = ticket;
  return ticket;
}

bool ArenaDescriptorServer::Progress(absl::Time now) {
  if (tickets_.empty() && callers_.empty()) return false;
  while (callers_.size() < kCallersMax) {
    OwnedDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) break;
    callers_.push_back({.socket = std::move(socket), .give_up = now + kCallerTime});
  }
  const size_t before = callers_.size();
  callers_.erase(
      std::remove_if(callers_.begin(), callers_.end(),
                     [&](const Caller& caller) { return Serve(caller) || caller.give_up <= now; }),
      callers_.end());
  return callers_.size() < before;
}

bool ArenaDescriptorServer::Serve(const Caller& caller) {
  char bytes[kProofBytes + 1];  // a longer message shows as one byte too many
  const ssize_t got = ::recv(caller.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  const char* why = nullptr;
  uint64_t number = 0;
  if (got != static_cast<ssize_t>(kProofBytes)) {
    why = "no proof";
  } else if (!IsOwnUser(caller.socket.get())) {
    why = "another user's process";
  } else {
    std::memcpy(&number, bytes, sizeof number);
    const absl::string_view tag(bytes + sizeof number, kKeyedTagBytes);
    const auto ticket = tickets_.find(number);
    if (ticket == tickets_.end() || !IsKeyedTag(tag, secret_, kPurpose, ticket->second)) {
      why = "no such ticket, or another secret";
    }
  }
  if (why == nullptr) {
    tickets_.erase(number);
    if (!SendDescriptor(caller.socket.get(), descriptor_)) why = "the caller left";
  }
  if (why != nullptr) {
    Log(LogLevel::kWarning, "refused a process that asked for the KV arena's descriptor",
        {{"reason", why}});
  }
  return true;
}

// ---- the reader's end -----------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ArenaDescriptorCall>> ArenaDescriptorCall::Start(
    const std::string& secret, const std::string& socket_name, const std::string& ticket,
    uint64_t number) {
  ASSIGN_OR_RETURN(const auto address, AbstractAddress(socket_name));
  OwnedDescriptor socket = NewSocket();
  if (socket.get() < 0) return SystemError("socket");
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.first), address.second) !=
      0) {
    return SystemError("connecting to the owner's socket");
  }
  std::string proof(reinterpret_cast<const char*>(&number), sizeof number);
  proof += KeyedTag(secret, kPurpose, ticket);
  if (::send(socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(proof.size())) {
    return SystemError("sending the proof");
  }
  return std::unique_ptr<ArenaDescriptorCall>(new ArenaDescriptorCall(std::move(socket)));
}

absl::StatusOr<std::optional<OwnedDescriptor>> ArenaDescriptorCall::Poll() {
  DescriptorMessage message;
  const ssize_t got = ::recvmsg(socket_.get(), &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<OwnedDescriptor>();
  const cmsghdr* rights = got == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS ||
      rights->cmsg_len != CMSG_LEN(sizeof(int))) {
    return absl::PermissionDeniedError("the arena's owner gave no descriptor");
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
  return std::optional<OwnedDescriptor>(OwnedDescriptor(descriptor));
}

absl::StatusOr<std::unique_ptr<MappedArena>> MappedArena::Map(const OwnedDescriptor& descriptor,
                                                              uint64_t bytes) {
  // A descriptor without these seals could shrink under a read, which would end this process.
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("the arena's descriptor has seals ", seals, ", expected ", kSeals));
  }
  struct stat file = {};
  if (::fstat(descriptor.get(), &file) != 0) return SystemError("fstat");
  if (static_cast<uint64_t>(file.st_size) != bytes || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the arena's descriptor has ", file.st_size,
                                                   " bytes, the offer said ", bytes));
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mmap: ", std::strerror(errno)));
  }
  return std::unique_ptr<MappedArena>(
      new MappedArena(absl::MakeConstSpan(static_cast<const std::byte*>(base), bytes)));
}

MappedArena::~MappedArena() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace tandem::transfer
