// How many bytes of a device may become KV cache, once the weights and the buffers of the largest
// step are there. Thread safety: a function; the engine thread. Owner: none.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/device/device_engine.h"
#include "common/kv/block_layout.h"
#include "kernels/api/device.h"

namespace tandem::engine {

// The engine's share of the memory, or less where others leave less: then room stays for what is
// allocated after the KV cache. Says in the log how. Errors: the device's.
absl::StatusOr<int64_t> DeviceBytesForKv(const DeviceEngineOptions& options,
                                         const kv::BlockLayout& layout, kernels::Device& device);

}  // namespace tandem::engine
