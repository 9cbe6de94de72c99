// Sends payloads that lie in device memory through a transport that reaches host memory only. Each
// payload passes through the pinned host memory that belongs to its slot (its twin): the sender
// copies it there after the device has computed its checksum, the receiver copies it to the device,
// which then verifies the checksum. Thread safety: as KvTransport. Owner: TransferService, or the
// NcclTransport on top.
#pragma once

#include <memory>

#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// `payloads` is shared with a NcclTransport where one lies on top.
std::unique_ptr<KvTransport> NewStagingTransport(std::unique_ptr<KvTransport> other,
                                                 std::shared_ptr<DevicePayloads> payloads);

}  // namespace tandem::transfer
