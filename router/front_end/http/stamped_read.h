// Reads a TCP socket and says when the kernel received the bytes. This shows how long a request
// waited before the router had time to read it. Linux (SO_TIMESTAMPNS).
// Thread safety: any thread; calls for one descriptor must not overlap.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "absl/time/time.h"

namespace tandem::router {

// Makes the kernel record the arrival times of bytes on all connections that `listening_fd` accepts
// from now on, also on those that wait to be accepted. Best effort: without times, `waited` is
// zero.
void StampArrivals(int listening_fd);

struct StampedRead {
  ssize_t got = 0;  // as recv(2): -1 with errno, 0 at the stream's end
  // The time since the kernel received the last of these bytes; zero if it does not say.
  absl::Duration waited;
};

// Reads at most `size` bytes of a socket that does not block.
StampedRead ReadStamped(int fd, char* into, size_t size);

}  // namespace tandem::router
