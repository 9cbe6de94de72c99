// The host side of bulk tensor copies. The driver encodes a description (a tensor map) of each
// matrix; its function comes through the runtime's table of driver symbols, so that no program
// links libcuda.
#include "kernels/api/bf16.h"
#include "kernels/cuda/gpu/cuda_stream.h"
#include "kernels/cuda/gpu/hopper_gpu.h"

namespace tandem::kernels::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled FindEncodeTiled() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(entry);
}

// What distinguishes one tensor map from another.
struct Tensor {
  CUtensorMapDataType type;
  CUtensorMapSwizzle swizzle;
  const void* base;
  cuuint32_t rank;
  cuuint64_t sizes[4];    // the fastest dimension first; its stride is the element
  cuuint64_t strides[3];  // in bytes
  cuuint32_t box[4];
};

void Encode(const Tensor& tensor, DeviceStream& stream, CUtensorMap* map) {
  static const EncodeTiled encode = FindEncodeTiled();
  CudaStream& on = static_cast<CudaStream&>(stream);
  if (encode == nullptr) {
    on.Check("cudaGetDriverEntryPoint of cuTensorMapEncodeTiled", cudaErrorNotSupported);
    return;
  }
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(map, tensor.type, tensor.rank, const_cast<void*>(tensor.base), tensor.sizes,
             tensor.strides, tensor.box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, tensor.swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) on.Check("cuTensorMapEncodeTiled", cudaErrorInvalidValue);
}

}  // namespace

PanelMap DescribePanels(const PanelSource& source, DeviceStream& stream) {
  PanelMap panels = {};
  const cuuint32_t element_bytes = static_cast<cuuint32_t>(source.element_bytes);
  Encode({.type =
              element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .base = source.base,
          .rank = 2,
          .sizes = {static_cast<cuuint64_t>(source.columns), static_cast<cuuint64_t>(source.rows)},
          .strides = {static_cast<cuuint64_t>(source.columns) * element_bytes},
          .box = {kPanelRowBytes / element_bytes, static_cast<cuuint32_t>(source.panel_rows)}},
         stream, &panels.map);
  return panels;
}

RunMap DescribeRuns(const RunSource& source, DeviceStream& stream) {
  RunMap runs = {};
  Encode({.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
          .base = source.base,
          .rank = 2,
          .sizes = {static_cast<cuuint64_t>(source.columns), static_cast<cuuint64_t>(source.rows)},
          .strides = {static_cast<cuuint64_t>(source.columns) * sizeof(float)},
          .box = {static_cast<cuuint32_t>(source.count), 1}},
         stream, &runs.map);
  return runs;
}

StripMap DescribeStrips(const StripTarget& target, DeviceStream& stream) {
  StripMap strips = {};
  Encode({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE,
          .base = target.base,
          .rank = 2,
          .sizes = {static_cast<cuuint64_t>(target.columns), static_cast<cuuint64_t>(target.rows)},
          .strides = {static_cast<cuuint64_t>(target.columns) * sizeof(Bf16Bits)},
          .box = {kStripColumns, static_cast<cuuint32_t>(target.strip_rows)}},
         stream, &strips.map);
  return strips;
}

CacheMap DescribeCache(const KvLayer& layer, int tokens_max, DeviceStream& stream) {
  const KvShape& shape = layer.shape;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(shape.head_dim) * sizeof(Bf16Bits);
  const cuuint64_t block_tokens = static_cast<cuuint64_t>(shape.block_tokens);
  const int tokens = shape.block_tokens < tokens_max ? shape.block_tokens : tokens_max;
  // The launch does not know how many blocks the region has. Block tables name no block beyond it.
  constexpr cuuint64_t kBlocksMax = 1 << 30;
  CacheMap cache = {};
  Encode({.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .base = layer.base,
          .rank = 4,
          .sizes = {static_cast<cuuint64_t>(shape.head_dim), block_tokens,
                    2 * static_cast<cuuint64_t>(shape.num_kv_heads), kBlocksMax},
          .strides = {row_bytes, block_tokens * row_bytes,
                      static_cast<cuuint64_t>(layer.block_stride_bytes)},
          .box = {kPanelColumns, static_cast<cuuint32_t>(tokens), 1, 1}},
         stream, &cache.map);
  return cache;
}

}  // namespace tandem::kernels::cuda
