#include "router/front_end/http/stamped_read.h"

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace tandem::router {
namespace {

// Stamps are of the settable clock: a wait beyond this is a step of that clock, not a wait.
constexpr absl::Duration kWaitMax = absl::Minutes(5);

absl::Duration Since(const timespec& stamp) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const absl::Duration waited = absl::DurationFromTimespec(now) - absl::DurationFromTimespec(stamp);
  return waited < absl::ZeroDuration() || waited > kWaitMax ? absl::ZeroDuration() : waited;
}

}  // namespace

void StampArrivals(int listening_fd) {
  const int on = 1;
  ::setsockopt(listening_fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
}

StampedRead ReadStamped(int fd, char* into, size_t size) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
  iovec room{into, size};
  msghdr message{};
  message.msg_iov = &room;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  StampedRead read;
  read.got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (read.got <= 0) return read;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr;
       entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{};
    std::memcpy(&stamp, CMSG_DATA(entry), sizeof stamp);
    read.waited = Since(stamp);
  }
  return read;
}

}  // namespace tandem::router
