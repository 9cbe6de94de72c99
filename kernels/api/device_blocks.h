// Where the blocks of a KV cache lie in a device's memory. KV transfers use it to move blocks
// without knowing what their bytes mean. Thread safety: a value. Owner: the engine, whose memory it
// names.
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
