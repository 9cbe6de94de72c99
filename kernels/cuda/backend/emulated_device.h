// The emulated device: a Device whose memory is the host's and whose kernels run in the emulated
// thread block (kernels/cuda/emulator). Tests use it to run the GPU's kernels without a GPU; it is
// slow by design.
//
// Thread safety: one thread at a time for a device and everything made from it.
// Owner: the test that opened it; streams, buffers, events and graphs must be destroyed before
// their device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/api/device.h"
#include "kernels/cuda/emulator/emulated_stream.h"

namespace tandem::kernels::emulated {

// Which kernels an emulated device has: the portable ones, or Hopper's.
enum class EmulatedChip { kAmpere, kHopper };

// A device whose threads and blocks run in orders drawn from `seed`.
std::unique_ptr<Device> NewEmulatedDevice(uint64_t seed, EmulatedChip chip = EmulatedChip::kAmpere);

// REQUIRES for all functions below: `device` is an emulated one.

// The calls since the device was made.
DeviceCalls CallsOf(const Device& device);

// Makes the next `count` copies of at least `bytes_min` bytes, in any direction, flip one bit.
void DamageCopies(Device& device, int count, size_t bytes_min);

// Makes events take their time from `now_ms`, which each Record calls. Without a clock, events have
// no time.
void SetClock(Device& device, std::function<float()> now_ms);

// The number of pinned pieces of host memory, and the most that Pin accepts.
size_t NumPins(const Device& device);
void LimitPins(Device& device, size_t pins);

// Device memory that other processes use from now on.
void SetBytesOfOthers(Device& device, int64_t bytes);

// From now on the device refuses device memory that it does not have beside that of others. As a
// GPU does, it hands memory out in pieces of `granule_bytes`.
void LimitMemory(Device& device, int64_t granule_bytes);

// Refuses `count` allocations of either kind, after `before` that succeed.
void RefuseAllocations(Device& device, int before, int count);

// Refuses the next `count` graphs.
void RefuseGraphs(Device& device, int count);

// Makes the device's properties say, from now on, that the host cannot address its memory.
void HideFromHost(Device& device);

}  // namespace tandem::kernels::emulated
