// Reads a TCP socket and learns when the kernel received what is read: how long a request lay
// there before the router had time for it is not visible otherwise. Linux (SO_TIMESTAMPNS).
// Thread safety: pure functions of their descriptor.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "absl/time/time.h"

namespace tandem::router {

// Has the kernel stamp what comes in on the connections that `listening_fd` accepts from now on,
// those that wait there included. Best effort: without stamps nothing seems to have waited.
void StampArrivals(int listening_fd);

struct StampedRead {
  ssize_t got = 0;  // as recv(2): -1 with errno, 0 at the stream's end
  // Since the kernel received the last of these bytes; zero where it does not say.
  absl::Duration waited;
};

// Reads at most `size` bytes of a socket that does not block.
StampedRead ReadStamped(int fd, char* into, size_t size);

}  // namespace tandem::router
