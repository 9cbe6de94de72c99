// A KvTransport whose payloads travel by links between accelerators (NCCL) while headers, control
// frames and everything a link cannot take go by another transport (UCX), which also arranges the
// links: one for each direction between two peers, opened with the first payload. Until a link is
// open, and for good once it failed, payloads take the other transport: a link can only make
// things faster. The KV transfer's checks are the same either way.
//
// A link's payloads are numbered; their headers come by the other transport, perhaps late, and the
// receiver takes payloads out of the link in the order of their numbers. A header that never comes,
// an operation that stands still and a peer that closes end the link; the sender then sends what is
// unfinished again by the other transport, and the receiver fails what it had taken.
//
// Thread safety: as KvTransport.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/runtime/clock.h"
#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transport.h"
#include "kernels/api/pair_channel.h"

namespace tandem::transfer {

struct NcclTransportOptions {
  std::string fleet_secret;  // the KV transfer's: links are offered under its tag
  // To become open at both ends; from start to end of one payload.
  absl::Duration open_within = absl::Seconds(30);
  absl::Duration move_within = absl::Seconds(5);
  // Links that may stand open towards this process; further offers are declined.
  int incoming_max = 64;
  const Clock* clock = &RealClock();
  // Where payloads lie when the links' slots are device memory; shared with the other transport,
  // which carries them too. Null with slots in host memory.
  std::shared_ptr<DevicePayloads> device;
};

std::unique_ptr<KvTransport> NewNcclTransport(const NcclTransportOptions& options,
                                              std::unique_ptr<KvTransport> other,
                                              std::unique_ptr<kernels::PairChannels> links);

}  // namespace tandem::transfer
