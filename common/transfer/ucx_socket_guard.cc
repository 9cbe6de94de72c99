#include "common/transfer/ucx_socket_guard.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/keyed_tag.h"
#include "common/runtime/random.h"

namespace tandem::transfer {

struct GuardState {
  explicit GuardState(const std::string& fleet_secret) : secret(fleet_secret) {}
  const std::string secret;
  std::atomic<int64_t> refused{0};

  // Sockets that are being connected: the proof goes in front of the first bytes that UCX sends. An
  // entry whose connection failed stays until its descriptor is connected or accepted again.
  void AwaitProof(int fd) {
    absl::MutexLock lock(&mutex_);
    unproven_.insert(fd);
    count_ = unproven_.size();
  }
  // False when the socket owes no proof.
  bool Forget(int fd) {
    if (count_ == 0) return false;
    absl::MutexLock lock(&mutex_);
    const bool found = unproven_.erase(fd) > 0;
    count_ = unproven_.size();
    return found;
  }

 private:
  absl::Mutex mutex_;
  // Bound: the process's descriptors.
  absl::flat_hash_set<int> unproven_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};  // of unproven_: most calls of send find none, without the lock
};

namespace {

using State = std::shared_ptr<GuardState>;

constexpr char kSocketPurpose[] = "kv socket";
constexpr size_t kNonceBytes = 16;
constexpr size_t kPreambleBytes = kNonceBytes + kKeyedTagBytes;
// How long the kernel waits for a connection's first bytes before accept() returns it.
constexpr int kFirstBytesWithinS = 5;
// How often the kernel repeats a connection's first packet: it gives up after 3 s. By default a
// host that does not answer would be tried for two minutes.
constexpr int kConnectRepeats = 1;
// Connections refused in one call of accept, so that a flood does not hold UCX's thread.
constexpr int kRefusedAtOnce = 16;

// The guard of the thread that is inside UCX: the functions that replace the C library's have no
// argument that could name it.
thread_local const State* current = nullptr;

// The guarded listening sockets.
class Listeners {
 public:
  void Add(int fd, const State& guard) {
    absl::MutexLock lock(&mutex_);
    guards_[fd] = guard;
  }
  void Remove(const State& guard) {
    absl::MutexLock lock(&mutex_);
    absl::erase_if(guards_, [&](const auto& entry) { return entry.second == guard; });
  }
  State Find(int fd) {
    absl::MutexLock lock(&mutex_);
    const auto found = guards_.find(fd);
    return found == guards_.end() ? nullptr : found->second;
  }

 private:
  absl::Mutex mutex_;
  // Bound: the network interfaces that UCX listens on.
  absl::flat_hash_map<int, State> guards_ ABSL_GUARDED_BY(mutex_);
};

// Never destroyed: accept() may be called until the process ends.
Listeners& AllListeners() {
  static Listeners& listeners = *new Listeners;
  return listeners;
}

// Address and port, in the network's order.
std::string AddressBytes(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    return absl::StrCat(
        absl::string_view(reinterpret_cast<const char*>(&in.sin_addr), sizeof in.sin_addr),
        absl::string_view(reinterpret_cast<const char*>(&in.sin_port), sizeof in.sin_port));
  }
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(&in6.sin6_addr), sizeof in6.sin6_addr),
      absl::string_view(reinterpret_cast<const char*>(&in6.sin6_port), sizeof in6.sin6_port));
}

// The bytes that the tag covers: the random bytes and both ends' addresses. "" when the connection
// is gone.
std::string Tagged(int fd, absl::string_view nonce, bool connecting) {
  sockaddr_storage own = {}, other = {};
  socklen_t own_bytes = sizeof own, other_bytes = sizeof other;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_bytes) != 0) {
    return "";
  }
  const std::string from = AddressBytes(connecting ? own : other);
  const std::string to = AddressBytes(connecting ? other : own);
  return absl::StrCat(nonce, from, to);
}

bool IsProven(int fd, const GuardState& guard) {
  char bytes[kPreambleBytes];
  // All of it is one segment, sent before anything else.
  if (::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) != static_cast<ssize_t>(sizeof bytes)) {
    return false;
  }
  const absl::string_view preamble(bytes, sizeof bytes);
  const std::string tagged = Tagged(fd, preamble.substr(0, kNonceBytes), /*connecting=*/false);
  return !tagged.empty() &&
         IsKeyedTag(preamble.substr(kNonceBytes), guard.secret, kSocketPurpose, tagged);
}

bool Prove(int fd, const GuardState& guard) {
  std::string preamble = SecretBytes(kNonceBytes);
  const std::string tagged = Tagged(fd, preamble, /*connecting=*/true);
  if (tagged.empty()) return false;
  preamble += KeyedTag(guard.secret, kSocketPurpose, tagged);
  return ::send(fd, preamble.data(), preamble.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(preamble.size());
}

int Accept(int fd, GuardState& guard, sockaddr* address, socklen_t* address_bytes) {
  const socklen_t room = address_bytes == nullptr ? 0 : *address_bytes;
  for (int refused = 0; refused < kRefusedAtOnce; ++refused) {
    if (address_bytes != nullptr) *address_bytes = room;
    const auto connection = static_cast<int>(::syscall(SYS_accept4, fd, address, address_bytes, 0));
    if (connection < 0) {
      // UCX never accepts again after an error that is not one of these two: not even when it was
      // only out of descriptors for a moment.
      if (errno != EINTR) errno = EAGAIN;
      return -1;
    }
    guard.Forget(connection);  // of an earlier socket with this descriptor
    if (IsProven(connection, guard)) return connection;
    ::close(connection);
    guard.refused.fetch_add(1);
  }
  errno = EAGAIN;
  return -1;
}

}  // namespace

UcxSocketGuard::UcxSocketGuard(const std::string& secret)
    : state_(std::make_shared<GuardState>(secret)) {}
UcxSocketGuard::~UcxSocketGuard() { AllListeners().Remove(state_); }

int64_t UcxSocketGuard::refused() const { return state_->refused.load(); }

UcxSocketGuard::Scope::Scope(const UcxSocketGuard& guard)
    : outer_(std::exchange(current, &guard.state_)) {}
UcxSocketGuard::Scope::~Scope() { current = outer_; }

// ---- in front of the C library's ----

extern "C" int listen(int fd, int backlog) noexcept {
  if (current != nullptr) {
    ::setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &kFirstBytesWithinS, sizeof(int));
    AllListeners().Add(fd, *current);
  }
  return static_cast<int>(::syscall(SYS_listen, fd, backlog));
}

extern "C" int accept(int fd, sockaddr* __restrict address, socklen_t* __restrict address_bytes) {
  const std::shared_ptr<GuardState> guard = AllListeners().Find(fd);
  if (guard != nullptr) return Accept(fd, *guard, address, address_bytes);
  return static_cast<int>(::syscall(SYS_accept4, fd, address, address_bytes, 0));
}

extern "C" int connect(int fd, const sockaddr* address, socklen_t address_bytes) {
  const bool guarded =
      current != nullptr && (address->sa_family == AF_INET || address->sa_family == AF_INET6);
  // An earlier socket may have had this descriptor.
  if (current != nullptr) (*current)->Forget(fd);
  if (guarded) ::setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &kConnectRepeats, sizeof(int));
  const auto result = static_cast<int>(::syscall(SYS_connect, fd, address, address_bytes));
  if (!guarded) return result;
  if (result != 0) {
    if (errno == EINPROGRESS) (*current)->AwaitProof(fd);
    return result;
  }
  if (Prove(fd, **current)) return 0;
  errno = ECONNRESET;
  return -1;
}

// UCX sends nothing before the connection is up, and the first bytes with this function.
extern "C" ssize_t send(int fd, const void* bytes, size_t count, int flags) {
  if (current != nullptr && (*current)->Forget(fd) && !Prove(fd, **current)) {
    errno = ECONNRESET;
    return -1;
  }
  return ::syscall(SYS_sendto, fd, bytes, count, flags, nullptr, 0);
}

}  // namespace tandem::transfer
