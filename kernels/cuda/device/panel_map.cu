// The host's side of bulk tensor copies: descriptions made by the driver, whose function comes
// through the runtime's table of driver symbols, so that nothing links libcuda.
#include "kernels/cuda/device/hopper.h"

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

}  // namespace

PanelMap DescribePanels(const PanelSource& source, DeviceStream& stream) {
  static const EncodeTiled encode = FindEncodeTiled();
  CudaStream& on = static_cast<CudaStream&>(stream);
  PanelMap panels = {};
  if (encode == nullptr) {
    on.Check("cudaGetDriverEntryPoint of cuTensorMapEncodeTiled", cudaErrorNotSupported);
    return panels;
  }
  // The fastest dimension first; its stride is the element.
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(source.columns),
                               static_cast<cuuint64_t>(source.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(source.columns) * sizeof(Bf16Bits)};
  const cuuint32_t box[2] = {kPanelColumns, static_cast<cuuint32_t>(source.panel_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode(&panels.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16Bits*>(source.base),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) on.Check("cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  return panels;
}

}  // namespace tandem::kernels::cuda
