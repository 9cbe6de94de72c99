// Attention over an int8 cache: instances of attention_kernel.h's kernel, which attention.cu
// launches.
#include "kernels/cuda/ops/attention_kernel.h"

namespace tandem::kernels::TANDEM_SIMT {

void AttendInt8(const AttentionParams& params, DeviceStream& stream) {
  LaunchItemsOf<KvType::kInt8>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
