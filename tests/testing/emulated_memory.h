// Blocks in the memory of an emulated device, for a side of a KvTransferWorld. Thread safety: none.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "kernels/cuda/backend/emulated_device.h"
#include "tests/testing/kv_transfer_side.h"

namespace tandem::testing {

struct EmulatedMemory {
  EmulatedMemory(uint64_t seed, const kv::BlockArena& arena)
      : device(kernels::emulated::NewEmulatedDevice(seed)) {
    blocks.device = device.get();
    for (int layer = 0; layer < arena.layout().num_layers; ++layer) {
      auto region = device->Allocate(
          kernels::DeviceBuffer::Kind::kDevice,
          static_cast<size_t>(arena.num_blocks() * arena.layout().layer_block_bytes));
      TANDEM_CHECK(region.ok());
      buffers.push_back(*std::move(region));
      blocks.regions.push_back(buffers.back().data());
    }
  }

  const std::unique_ptr<kernels::Device> device;
  std::vector<kernels::DeviceBuffer> buffers;
  kernels::DeviceBlocks blocks;
};

// The returned object shares ownership of `memory`.
inline KvTransferMemory NewDeviceMemory(const std::shared_ptr<EmulatedMemory>& memory,
                                        kv::BlockArena& arena,
                                        const transfer::DevicePayloadOptions& options,
                                        bool staged) {
  auto payloads = transfer::DevicePayloads::Create(options, memory->blocks, arena);
  TANDEM_CHECK(payloads.ok(), payloads.status().ToString());
  return {memory, *std::move(payloads), memory->blocks.regions, staged};
}

}  // namespace tandem::testing
