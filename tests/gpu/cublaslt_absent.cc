// For builds without CUDA.
#include "tests/gpu/cublaslt.h"

namespace tandem::kernels {

std::string CublasLt::Describe() { return "cuBLASLt: built without CUDA"; }

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Open(Device&) {
  return absl::UnavailableError("built without CUDA");
}

}  // namespace tandem::kernels
