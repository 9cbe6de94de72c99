// Goal: any bytes parsed as a safetensors file give a Status, or tensors that lie within the file.
// The number of scales attached to an fp8 tensor matches the tensor's rows and columns.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/types/span.h"
#include "common/model/dequantize.h"
#include "common/model/hf_quantization.h"
#include "common/model/safetensors.h"

namespace {

void CheckScales(const tandem::model::FileTensor& tensor) {
  const tandem::model::TensorScales& scales = tensor.scales;
  if (tensor.type != tandem::model::TensorType::kF8E4M3) {
    if (!scales.values.empty()) std::abort();
    return;
  }
  if (tensor.shape.size() != 2 || scales.rows < 1 || scales.columns < 1) std::abort();
  const int64_t down = (tensor.shape[0] - 1) / scales.rows + 1;
  const int64_t across = (tensor.shape[1] - 1) / scales.columns + 1;
  if (static_cast<int64_t>(scales.values.size()) != down * across) std::abort();
  for (const float scale : scales.values) {
    if (!(scale > 0) || !std::isfinite(scale)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto tensors = tandem::model::ParseSafetensors(absl::MakeConstSpan(begin, size));
  if (!tensors.ok()) return 0;
  for (const tandem::model::FileTensor& tensor : *tensors) {
    uint64_t bytes = static_cast<uint64_t>(tandem::model::LayoutOf(tensor.type).block_bytes);
    for (const int64_t dimension : tensor.shape) bytes *= static_cast<uint64_t>(dimension);
    if (tensor.data < begin || tensor.data + bytes > begin + size) std::abort();
  }
  std::vector<tandem::model::FileTensor> scaled = *tensors;
  const tandem::model::Fp8Scheme scheme = {"fuzz", true, true, 2, 2};
  if (!tandem::model::AttachScales(scheme, scaled).ok()) return 0;
  for (const tandem::model::FileTensor& tensor : scaled) CheckScales(tensor);
  return 0;
}
