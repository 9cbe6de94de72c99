// XXH3-64 checksums of ranges of device memory, equal to the host library's. KV transfers use them.
// DeviceOps::checksum enqueues them.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

namespace tandem::kernels {

// checksums[i] = XXH3-64 of range i, as the host's library gives it.
struct DeviceChecksumArgs {
  const char* base = nullptr;  // range 0; any alignment, multiples of 8 are fast
  int64_t stride_bytes = 0;    // from the start of a range to that of the next
  int64_t bytes = 0;           // length of each range, at least kChecksumBytesMin
  int32_t count = 0;
  uint64_t* checksums = nullptr;  // [count]
};
// The shortest range: XXH3 has other algorithms for shorter ones, and no KV block is that short.
inline constexpr int64_t kChecksumBytesMin = 241;

}  // namespace tandem::kernels
