// Carries payloads of device memory by a transport that reaches host memory only: each passes the
// pinned twin of its slot, after the device computed its checksum at the sender, before it does at
// the receiver. Thread safety: as KvTransport.
#pragma once

#include <memory>

#include "common/transfer/device_payloads.h"
#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// `payloads` is shared with a NcclTransport where one lies on top.
std::unique_ptr<KvTransport> NewStagingTransport(std::unique_ptr<KvTransport> other,
                                                 std::shared_ptr<DevicePayloads> payloads);

}  // namespace tandem::transfer
