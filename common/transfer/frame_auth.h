// The auth tag of a frame's header and the checksum of its payload, both XXH3-64.
//
// The tag is XXH3-64 over the serialized header without its tag, under a 192-byte secret derived
// from the fleet's secret. The header holds the payload's checksum, so the tag covers the payload
// too.
//
// The tag rejects damaged headers, and frames of a process with another fleet's secret, over any
// transport. It is no MAC: who observes many tagged frames may learn to make one, and any frame can
// be repeated. Between processes a SealedTransport lies below (sealed_transport.h), whose tags stop
// forged, repeated, returned and foreign frames, this header's checksum of the payload included.
// With an empty secret this tag detects damage only.
//
// Thread safety: const methods from any thread.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/transfer/kv_transport.h"
#include "tandem/v1/kv.pb.h"

namespace tandem::transfer {

class FrameAuth {
 public:
  explicit FrameAuth(absl::string_view fleet_secret);

  // Sets frame.auth_tag.
  void Sign(v1::KvFrame& frame) const;
  // Whether frame.auth_tag is the one that Sign would set.
  bool Verify(const v1::KvFrame& frame) const;

 private:
  uint64_t Tag(const v1::KvFrame& frame_without_tag) const;
  std::array<uint8_t, 192> secret_;
};

// Over the pieces in order, as if they were one.
uint64_t PayloadChecksum(absl::Span<const absl::Span<const std::byte>> pieces);

}  // namespace tandem::transfer
