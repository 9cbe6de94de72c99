// Any bytes parsed as a safetensors file give a Status or tensors that lie within the file.
#include <cstdint>
#include <cstdlib>

#include "absl/types/span.h"
#include "common/model/dequantize.h"
#include "common/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto tensors = tandem::model::ParseSafetensors(absl::MakeConstSpan(begin, size));
  if (!tensors.ok()) return 0;
  for (const tandem::model::FileTensor& tensor : *tensors) {
    uint64_t bytes = static_cast<uint64_t>(tandem::model::LayoutOf(tensor.type).block_bytes);
    for (const int64_t dimension : tensor.shape) bytes *= static_cast<uint64_t>(dimension);
    if (tensor.data < begin || tensor.data + bytes > begin + size) std::abort();
  }
  return 0;
}
