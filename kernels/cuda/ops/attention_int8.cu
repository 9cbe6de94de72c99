// Attention over an int8 cache: the kernels of attention.cu.
#include "kernels/cuda/ops/attention_kernel.h"

namespace tandem::kernels::TANDEM_SIMT {

void AttendInt8(const AttentionParams& params, DeviceStream& stream) {
  LaunchItemsOf<KvType::kInt8>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
