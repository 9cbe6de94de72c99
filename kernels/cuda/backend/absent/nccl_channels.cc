// OpenNcclChannels (kernels/api/pair_channel.h) in a build without CUDA or NCCL's header. It
// returns an error that says so.
#include "kernels/api/pair_channel.h"

namespace tandem::kernels {

absl::StatusOr<std::unique_ptr<PairChannels>> OpenNcclChannels(int, int, size_t, SlotMemory) {
  return absl::UnimplementedError(
      "this build has no NCCL: configure with TANDEM_CUDA=ON, a CUDA toolkit and nccl.h");
}

}  // namespace tandem::kernels
