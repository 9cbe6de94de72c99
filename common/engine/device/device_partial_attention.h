// A device engine's PartialAttention: records of attention over blocks that its node has lent, on a
// stream beside the engine's, which has priority.
// Thread safety: one thread at a time, beside the engine's Step. Owner: the node's lending plane.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/device/device_kv.h"
#include "common/engine/device/device_partials.h"
#include "common/engine/remote_attention.h"
#include "common/model/model_config.h"

namespace tandem::engine {

struct DevicePartialAttentionOptions {
  model::ModelConfig config;
  DevicePartials::Options partials;
  // Whether blocks arrive in the arena (DeviceKv), and are to be copied to the device.
  bool fetch_arrived = true;
};

// `device` and `kv` outlive it. Errors: the device's.
absl::StatusOr<std::unique_ptr<PartialAttention>> NewDevicePartialAttention(
    DevicePartialAttentionOptions options, DeviceKv& kv, kernels::Device& device);

// Bytes of the records of `units` units for `num_rows` rows: one record for each unit, row and
// head, [units][num_rows][heads][head_dim + 2].
int64_t UnitRecordBytes(const DevicePartials& partials, const UnitSpan& units, int32_t num_rows);

}  // namespace tandem::engine
