// Copies a payload out of memory that its owner may change meanwhile, and computes the checksum of
// the bytes that were copied. Each byte is read once, and goes both past the caches into its place
// and into a buffer that stays in the cache; the buffer is then summed up. So the checksum is of
// what landed, whatever happens to the source.
// Thread safety: any thread.
#pragma once

#include <cstdint>

#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// Returns PayloadChecksum of what it copied from `from` to `to`. The source's pieces and the
// destination's may be cut differently. REQUIRES: both have the same number of bytes in all.
uint64_t CopyWithChecksum(const GatherList& from, const ScatterList& to);

}  // namespace tandem::transfer
