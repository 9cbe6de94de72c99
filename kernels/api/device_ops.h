// The table of a device's operators. Each function enqueues one operator on a stream of the device;
// kernels/api/device_<operator>.h documents its arguments. Sizes travel with the call, so a
// captured graph can replay with new contents of the same buffers.
//
// Numerics: bf16 matrix operands, weights by DeviceWeightType, cache by KvType; fp32 accumulators,
// norms, residual stream and logits. A row's bits depend on that row, the weights and its own cache
// only (docs/NUMERICS.md). Thread safety: tables are constants; a call has its stream's thread
// safety. Owner: the device. Errors: the stream's status.
#pragma once

#include <cstdint>

#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"

namespace tandem::kernels {

class DeviceStream;
struct DeviceAttentionArgs;
struct DeviceChecksumArgs;
struct DeviceCombineArgs;
struct DeviceCopyBlocksArgs;
struct DeviceEmbedArgs;
struct DeviceGatedArgs;
struct DeviceGroupedGemmArgs;
struct DeviceMoveCellsArgs;
struct DeviceQuantiseArgs;
struct DeviceRmsNormArgs;
struct DeviceRopeKvArgs;
struct DeviceRouteArgs;
struct DeviceSampleArgs;
struct DeviceSortByExpertArgs;
struct KvShape;

struct DeviceOps {
  const char* numerics = "";  // equal strings promise equal bits on equal GPUs
  void (*embed)(const DeviceEmbedArgs& args, DeviceStream& stream) = nullptr;
  void (*rms_norm)(const DeviceRmsNormArgs& args, DeviceStream& stream) = nullptr;
  void (*rope_kv)(const DeviceRopeKvArgs& args, DeviceStream& stream) = nullptr;
  void (*gated)(const DeviceGatedArgs& args, DeviceStream& stream) = nullptr;
  void (*quantise)(const DeviceQuantiseArgs& args, DeviceStream& stream) = nullptr;
  void (*gemm)(const DeviceGemmArgs& args, DeviceStream& stream) = nullptr;
  // Tile `index` of products with weights of `type`; shared_bytes is 0 where there is none.
  DeviceGemmTile (*gemm_tile)(DeviceWeightType type, int32_t index) = nullptr;
  void (*attention)(const DeviceAttentionArgs& args, DeviceStream& stream) = nullptr;
  // How many narrow items of attention over such a cache a multiprocessor with `shared_bytes` of
  // shared memory computes at a time: at least 1.
  int32_t (*narrow_items_at_once)(const KvShape& shape, int64_t shared_bytes) = nullptr;
  void (*copy_blocks)(const DeviceCopyBlocksArgs& args, DeviceStream& stream) = nullptr;
  void (*move_cells)(const DeviceMoveCellsArgs& args, DeviceStream& stream) = nullptr;
  void (*checksum)(const DeviceChecksumArgs& args, DeviceStream& stream) = nullptr;
  void (*sample)(const DeviceSampleArgs& args, DeviceStream& stream) = nullptr;
  void (*route_experts)(const DeviceRouteArgs& args, DeviceStream& stream) = nullptr;
  void (*sort_by_expert)(const DeviceSortByExpertArgs& args, DeviceStream& stream) = nullptr;
  void (*grouped_gemm)(const DeviceGroupedGemmArgs& args, DeviceStream& stream) = nullptr;
  void (*combine_experts)(const DeviceCombineArgs& args, DeviceStream& stream) = nullptr;
};

// Whether a device's `gemm` takes weights of this type.
inline bool HasProducts(const DeviceOps& ops, DeviceWeightType type) {
  return ops.gemm_tile(type, 0).shared_bytes > 0;
}

}  // namespace tandem::kernels
