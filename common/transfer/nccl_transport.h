// A KvTransport whose payloads travel through channels between accelerators (NCCL). Headers,
// control frames and everything that a channel cannot take go through another transport (UCX),
// which also carries the messages that set the channels up: one channel for each direction between
// two peers, opened with the first payload. Payloads take the other transport until a channel is
// open, and for good once it has failed: a channel only makes things faster. The KV transfer checks
// payloads in the same way on both paths.
//
// A channel's payloads are numbered. Their headers come over the other transport, perhaps late, and
// the receiver takes payloads out of the channel in the order of their numbers. The channel ends
// when a header does not arrive, an operation makes no progress, or the peer closes it. The sender
// then sends all unfinished payloads again through the other transport, and the receiver fails
// those that it had begun to take.
//
// Thread safety: as KvTransport. Owner: TransferService.
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
  std::string fleet_secret;  // keys the auth tag of the frames that set channels up
  // A channel that is not open at both ends within `open_within`, or moves no payload within
  // `move_within`, has failed.
  absl::Duration open_within = absl::Seconds(30);
  absl::Duration move_within = absl::Seconds(5);
  // Channels that may be open towards this process; further offers are declined.
  int incoming_max = 64;
  const Clock* clock = &RealClock();
  // Where payloads lie when the channels' slots are device memory; shared with the other transport.
  // Null: the slots are host memory.
  std::shared_ptr<DevicePayloads> device;
};

// `other` carries what the channels do not. REQUIRES: `options.device` is set exactly when the
// slots of `channels` are device memory.
std::unique_ptr<KvTransport> NewNcclTransport(const NcclTransportOptions& options,
                                              std::unique_ptr<KvTransport> other,
                                              std::unique_ptr<kernels::PairChannels> channels);

}  // namespace tandem::transfer
