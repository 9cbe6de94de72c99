// The blocks of a KV cache that lies in a device's memory, as the KV plane sees them: where they
// are, not what they mean. Thread safety: a value. Owner: the engine, whose memory it names.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::kernels {

class Device;

struct DeviceBlocks {
  Device* device = nullptr;
  std::vector<char*> regions;  // [num_layers], each [num_blocks][layer_block_bytes]
};

}  // namespace tandem::kernels
