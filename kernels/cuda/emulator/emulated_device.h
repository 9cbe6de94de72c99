// The emulated device: host memory, streams that run at once, graphs that replay closures, and
// kernels run by the thread block emulator. For tests; slow by design.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/api/device.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace tandem::kernels::emulated {

using LaunchShape = Grid;

// Runs a kernel of so many blocks, or records it while capturing.
void Enqueue(DeviceStream& stream, int64_t blocks, std::function<void(uint64_t seed)> work);

template <typename Kernel>
void Launch(const LaunchShape& shape, const typename Kernel::Params& params, DeviceStream& stream) {
  if (shape.x == 0 || shape.y == 0) return;
  Enqueue(stream, int64_t{shape.x} * shape.y, [shape, params](uint64_t seed) {
    RunGrid(
        shape, seed,
        [](const void* context) {
          Kernel::Run(*static_cast<const typename Kernel::Params*>(context));
        },
        &params);
  });
}

// What was asked of a device's streams; what a graph holds counts as one launch, when it runs.
struct DeviceCalls {
  int64_t copies = 0;  // in, out, within, and fills
  int64_t kernels = 0;
  int64_t blocks = 0;  // of the kernels
  int64_t graphs = 0;
  int64_t events = 0;  // recorded or waited for
  int64_t synchronises = 0;
  int64_t bytes_in = 0, bytes_out = 0;  // of the copies

  int64_t total() const { return copies + kernels + graphs + events + synchronises; }
};
// Since the device was made. REQUIRES: `device` is an emulated one.
DeviceCalls CallsOf(const Device& device);

// Which kernels an emulated device has: the portable ones, or Hopper's.
enum class EmulatedChip { kAmpere, kHopper };

// The next `count` copies of at least `bytes_min` bytes, either way, flip one bit. REQUIRES:
// emulated.
void DamageCopies(Device& device, int count, size_t bytes_min);

// Gives events a time: what `now_ms` says when they are recorded. Without it they have none.
// REQUIRES: emulated.
void SetClock(Device& device, std::function<float()> now_ms);

// Pieces of host memory that are pinned now, and how many may be. REQUIRES: emulated.
size_t NumPins(const Device& device);
void LimitPins(Device& device, size_t pins);

// Says from now on that its memory is no host's. REQUIRES: emulated.
void HideFromHost(Device& device);

// A device whose threads, and blocks, run in orders drawn from `seed`.
std::unique_ptr<Device> NewEmulatedDevice(uint64_t seed, EmulatedChip chip = EmulatedChip::kAmpere);

}  // namespace tandem::kernels::emulated
