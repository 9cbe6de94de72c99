// Measures the most that a device allows, as MeasureRoofs does for the processor.
// Thread safety: one thread.
#pragma once

#include "absl/status/statusor.h"
#include "cli/bench/machine_roofs.h"
#include "kernels/api/device.h"

namespace tandem::engine {

// Bytes a second: those that a copy of 2 GiB within the device reads and writes. Operations a
// second: those of this project's own product of 8192 x 8192 by 8192 bf16 values, the largest that
// its kernels reach, for weights of every type. There is no rate of caches. Takes 4 GiB of the
// device's memory meanwhile. Errors: the device's.
absl::StatusOr<MachineRoofs> MeasureDeviceRoofs(kernels::Device& device);

}  // namespace tandem::engine
