// The auth tag of a frame's header and the checksum of its payload, both XXH3-64.
//
// The tag is XXH3-64 over the serialized header without its tag, under a 192-byte secret derived
// from the fleet's secret. The header holds the payload's checksum, so the tag covers the payload
// too.
//
// What it protects from: damaged headers, and frames of a process that does not hold the fleet's
// secret (another cluster on the same network, a node with an old configuration, a port scanner).
// What it does not: XXH3 is not a cryptographic MAC. Someone who can observe many tagged frames may
// be able to forge one, and any frame can be replayed. Replays are harmless by the protocol
// (incarnations, epochs, and a range that is filled once), forging is kept out by the isolated
// network that the KV plane must run on. An empty secret leaves only damage detection.
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
  bool Verify(const v1::KvFrame& frame) const;

 private:
  uint64_t Tag(const v1::KvFrame& frame_without_tag) const;
  std::array<uint8_t, 192> secret_;
};

// Over the pieces in order, as if they were one.
uint64_t PayloadChecksum(absl::Span<const absl::Span<const std::byte>> pieces);

}  // namespace tandem::transfer
