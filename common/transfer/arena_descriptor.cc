#include "common/transfer/arena_descriptor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
#include "common/transfer/local_socket.h"

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

}  // namespace

// ---- the owner's end ------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ArenaDescriptorServer>> ArenaDescriptorServer::Start(
    const std::string& secret, int descriptor) {
  std::unique_ptr<ArenaDescriptorServer> server(new ArenaDescriptorServer(secret, descriptor));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status ArenaDescriptorServer::Listen() {
  name_ = absl::StrCat("tandem-kv-", absl::BytesToHexString(SecretBytes(kNameBytesRandom)));
  ASSIGN_OR_RETURN(listener_,
                   ListenLocal(name_, LocalSocketType::kMessages, static_cast<int>(kCallersMax)));
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
  ASSIGN_OR_RETURN(OwnedDescriptor socket, ConnectLocal(socket_name, LocalSocketType::kMessages));
  std::string proof(reinterpret_cast<const char*>(&number), sizeof number);
  proof += KeyedTag(secret, kPurpose, ticket);
  if (::send(socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(proof.size())) {
    return SystemError("sending the proof");
  }
  return std::unique_ptr<ArenaDescriptorCall>(new ArenaDescriptorCall(std::move(socket)));
}

absl::StatusOr<std::optional<OwnedDescriptor>> ArenaDescriptorCall::Poll() {
  return ReceiveDescriptor(socket_.get());
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
