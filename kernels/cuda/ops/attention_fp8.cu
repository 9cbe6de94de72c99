// Attention over an fp8 cache: instances of the kernel of kernels/cuda/ops/attention_kernel.h,
// which attention.cu launches.
#include "kernels/cuda/ops/attention_kernel.h"

namespace tandem::kernels::TANDEM_SIMT {

void AttendFp8(const AttentionParams& params, DeviceStream& stream) {
  LaunchItemsOf<KvType::kFp8>(params, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
