// cuBLASLt's product for the benchmark: what NVIDIA's library chooses for the same operands. The
// library is found at run time, because it is far larger than everything else here; without it the
// benchmark prints no figures of it. Tandem itself never uses it: its order of sums depends on the
// number of rows.
// Thread safety: one thread at a time. Owner: the benchmark; it must go before its device.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/device.h"
#include "kernels/api/device_gemm.h"

namespace tandem::kernels {

class CublasLt {
 public:
  // "cuBLASLt 13.1.0", or why it cannot be used. Needs no GPU.
  static std::string Describe();
  // Errors: kUnavailable without the library or with one that lacks a function; the library's.
  static absl::StatusOr<std::unique_ptr<CublasLt>> Open(Device& device);
  virtual ~CublasLt() = default;

  // Lets the library choose an algorithm for products like this: y = x · wᵀ with bf16 operands and
  // fp32 sums. Errors: kUnimplemented when it has none; the library's.
  virtual absl::Status Choose(const DeviceGemmArgs& args) = 0;
  // Enqueues a product of the chosen shape; takes x, w and y from `args`. Failures go to the
  // stream's status. REQUIRES: Choose returned OK for its shape; a CUDA stream.
  virtual void Multiply(const DeviceGemmArgs& args, DeviceStream& stream) = 0;
};

}  // namespace tandem::kernels
