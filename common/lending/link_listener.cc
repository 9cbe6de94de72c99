#include "common/lending/link_listener.h"

#include <netdb.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/local_socket.h"
#include "common/transfer/shared_ring_link.h"
#include "common/transfer/tcp_link.h"

namespace tandem::lending {
namespace {

using transfer::OwnedDescriptor;

// How long no caller is taken after the system had no descriptor for one.
constexpr absl::Duration kAcceptAgain = absl::Milliseconds(100);
// Callers that wait in the kernel until the lending thread has taken them, of each kind of link.
constexpr int kBacklog = 128;
// A stranger must not fill the log.
constexpr absl::Duration kLogAgain = absl::Seconds(1);
// Of callers over the Unix socket.
constexpr char kThisHost[] = "this host";

// The IP address in numbers, without the port.
std::string HostOf(const sockaddr_storage& address, socklen_t bytes) {
  char host[NI_MAXHOST];
  const int code = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host,
                                 sizeof host, nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? std::string(host) : std::string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkListener>> LinkListener::Start(
    const LinkListenerOptions& options) {
  if (options.self.node.value().size() > kNodeIdBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the node's id has ",
                                                   options.self.node.value().size(),
                                                   " bytes, expected at most ", kNodeIdBytesMax));
  }
  std::unique_ptr<LinkListener> listener(new LinkListener(options));
  listener->epoll_ = OwnedDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (listener->epoll_.get() < 0) {
    return absl::UnavailableError(absl::StrCat("epoll_create1: ", std::strerror(errno)));
  }
  LinkAddress address;
  ASSIGN_OR_RETURN(ListeningSocket local, ListenForLocalLinks(kBacklog));
  address.local = local.address;
  listener->listeners_.push_back(std::move(local));
  if (!options.tcp_host.empty()) {
    ASSIGN_OR_RETURN(ListeningSocket tcp, ListenForTcpLinks(options.tcp_host, kBacklog));
    address.tcp = tcp.address;
    listener->listeners_.push_back(std::move(tcp));
  }
  for (const ListeningSocket& socket : listener->listeners_) {
    RETURN_IF_ERROR(listener->Watch(socket.socket.get()));
  }
  listener->address_ = FormatLinkAddress(address);
  return listener;
}

absl::Status LinkListener::Watch(int socket) {
  epoll_event event = {.events = EPOLLIN, .data = {}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

// While no caller can be taken, those who wait in the kernel must not keep descriptor() readable.
void LinkListener::WatchListeners(bool watch) {
  if (watch == watches_listeners_) return;
  for (const ListeningSocket& listener : listeners_) {
    epoll_event event = {.events = watch ? uint32_t{EPOLLIN} : 0, .data = {}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener.socket.get(), &event) != 0) return;
  }
  watches_listeners_ = watch;
}

void LinkListener::Accept(const ListeningSocket& listener, absl::Time now) {
  const bool is_local = IsLocalAddress(listener.address);
  // So many at a time: those who are here go on between them.
  for (size_t i = 0; i < kCallersMax; ++i) {
    sockaddr_storage from = {};
    socklen_t from_bytes = sizeof from;
    OwnedDescriptor socket(::accept4(listener.socket.get(), reinterpret_cast<sockaddr*>(&from),
                                     &from_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno != EAGAIN) accept_again_ = now + kAcceptAgain;
      return;
    }
    if (is_local && !transfer::IsOwnUser(socket.get())) {
      Refuse(absl::PermissionDeniedError("another user's process"), now);
      continue;
    }
    if (const absl::Status watched = Watch(socket.get()); !watched.ok()) {
      Refuse(watched, now);
      continue;
    }
    if (callers_.size() == kCallersMax) MakePlace(now);
    callers_.push_back(
        {.socket = std::move(socket),
         .is_local = is_local,
         .source = is_local ? kThisHost : HostOf(from, from_bytes),
         .handshake = CreditorHandshake(options_.fleet_secret, options_.self, listener.address),
         .reader = {},
         .give_up = now + kCallerTime});
  }
}

void LinkListener::MakePlace(absl::Time now) {
  absl::flat_hash_map<absl::string_view, size_t> counts;
  size_t most = 0;
  for (const Caller& caller : callers_) most = std::max(most, ++counts[caller.source]);
  auto ended = callers_.end();
  for (auto caller = callers_.begin(); caller != callers_.end(); ++caller) {
    if (counts[caller->source] < most) continue;
    const bool is_first = ended == callers_.end();
    if (is_first || (ended->is_challenged && !caller->is_challenged)) ended = caller;
  }
  Refuse(absl::ResourceExhaustedError(
             absl::StrCat(most, " callers of ", ended->source, " have not proved anything yet")),
         now);
  callers_.erase(ended);
}

absl::StatusOr<bool> LinkListener::GoOn(Caller& caller) {
  while (true) {
    ASSIGN_OR_RETURN(const auto message, caller.reader.Read(caller.socket.get()));
    if (!message.has_value()) return false;
    if (caller.is_challenged) {
      RETURN_IF_ERROR(caller.handshake.Check(*message));
      return true;
    }
    ASSIGN_OR_RETURN(const std::string challenge, caller.handshake.Challenge(*message));
    RETURN_IF_ERROR(SendFrame(caller.socket.get(), challenge));
    caller.is_challenged = true;
  }
}

absl::StatusOr<LinkListener::NewLink> LinkListener::MakeLink(Caller& caller) {
  NewLink made{.debtor = caller.handshake.debtor(), .link = nullptr};
  const int socket = caller.socket.get();
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
  if (caller.is_local) {
    ASSIGN_OR_RETURN(const OwnedDescriptor memory, transfer::NewRingMemory(kLendingLinkLimits));
    ASSIGN_OR_RETURN(made.link, transfer::SharedRingLink::Create(
                                    std::move(caller.socket), memory,
                                    transfer::SharedRingLink::Side::kFirst, kLendingLinkLimits));
    if (!transfer::SendDescriptor(socket, memory.get())) {
      return absl::UnavailableError("the debtor has left");
    }
    return made;
  }
  const LinkKeys keys = caller.handshake.keys();
  ASSIGN_OR_RETURN(made.link, transfer::TcpLink::Create(std::move(caller.socket),
                                                        {.send = keys.creditor_to_debtor,
                                                         .receive = keys.debtor_to_creditor},
                                                        kLendingLinkLimits));
  if (::send(socket, &kLinkAccepted, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    return absl::UnavailableError("the debtor has left");
  }
  return made;
}

void LinkListener::Refuse(const absl::Status& why, absl::Time now) {
  ++refused_;
  if (now < log_again_) return;
  log_again_ = now + kLogAgain;
  Log(LogLevel::kWarning, "refused a process that wanted a lending link",
      {{"reason", why.message()}, {"refused", refused_}});
}

std::vector<LinkListener::NewLink> LinkListener::Progress(absl::Time now) {
  std::vector<NewLink> links;
  if (now >= accept_again_) {
    for (const ListeningSocket& listener : listeners_) Accept(listener, now);
  }
  for (size_t i = 0; i < callers_.size();) {
    absl::StatusOr<bool> is_complete = GoOn(callers_[i]);
    absl::Status failure = is_complete.status();
    if (is_complete.ok() && *is_complete) {
      auto link = MakeLink(callers_[i]);
      failure = link.status();
      if (link.ok()) links.push_back(*std::move(link));
    } else if (is_complete.ok()) {
      if (now < callers_[i].give_up) {
        ++i;
        continue;
      }
      failure = absl::DeadlineExceededError("no proof in time");
    }
    if (!failure.ok()) Refuse(failure, now);
    callers_.erase(callers_.begin() + static_cast<ptrdiff_t>(i));
  }
  WatchListeners(now >= accept_again_);
  return links;
}

absl::Time LinkListener::next_time() const {
  absl::Time time = absl::InfiniteFuture();
  for (const Caller& caller : callers_) time = std::min(time, caller.give_up);
  if (!watches_listeners_) time = std::min(time, accept_again_);
  return time;
}

}  // namespace tandem::lending
