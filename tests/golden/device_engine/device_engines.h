// The devices that the device engine is tested on: emulated ones everywhere, CUDA where there is
// one. Thread safety: one thread.
#pragma once

#include <memory>
#include <string>

#include "common/engine/device/device_engine.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {

enum class DeviceKind { kEmulated, kEmulatedHopper, kCuda };

inline std::string DeviceKindName(DeviceKind kind) {
  if (kind == DeviceKind::kEmulated) return "Emulated";
  return kind == DeviceKind::kEmulatedHopper ? "EmulatedHopper" : "Cuda";
}
// Whether to skip, saying so.
inline bool DeviceIsMissing(DeviceKind kind) {
  return kind == DeviceKind::kCuda && kernels::CountCudaDevices() == 0;
}

inline absl::StatusOr<std::unique_ptr<Engine>> NewEngineOn(DeviceKind kind,
                                                           const model::Checkpoint& checkpoint,
                                                           const DeviceEngineOptions& options) {
  if (kind == DeviceKind::kCuda) return NewCudaEngine(checkpoint, options);
  return NewDeviceEngine(
      checkpoint, options,
      kernels::emulated::NewEmulatedDevice(7, kind == DeviceKind::kEmulatedHopper
                                                  ? kernels::emulated::EmulatedChip::kHopper
                                                  : kernels::emulated::EmulatedChip::kAmpere));
}

}  // namespace tandem::engine
