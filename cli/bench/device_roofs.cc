#include "cli/bench/device_roofs.h"

#include <memory>

#include "common/base/status_macros.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_timing.h"

namespace tandem::engine {
namespace {

using kernels::Bf16Bits;
using kernels::Device;
using kernels::DeviceBuffer;
using kernels::DeviceStream;

constexpr size_t kCopyBytes = size_t{2} << 30;
constexpr int32_t kSide = 8192;

constexpr int kRuns = 5;

absl::StatusOr<double> CopyBytesPerSecond(Device& device, DeviceStream& stream) {
  ASSIGN_OR_RETURN(const DeviceBuffer from,
                   kernels::NewTimingValues(device, stream, kCopyBytes / sizeof(Bf16Bits), 1));
  ASSIGN_OR_RETURN(const DeviceBuffer to, device.Allocate(DeviceBuffer::Kind::kDevice, kCopyBytes));
  ASSIGN_OR_RETURN(const double ms, kernels::TimeOnStream(device, stream, kRuns, [&](int) {
                     stream.CopyWithin(to.data(), from.data(), kCopyBytes);
                   }));
  return 2.0 * static_cast<double>(kCopyBytes) / ms * 1e3;
}

absl::StatusOr<double> ProductFlops(Device& device, DeviceStream& stream) {
  const size_t size = size_t{kSide} * kSide;
  ASSIGN_OR_RETURN(const DeviceBuffer x, kernels::NewTimingValues(device, stream, size, 1));
  ASSIGN_OR_RETURN(const DeviceBuffer w, kernels::NewTimingValues(device, stream, size, 2));
  ASSIGN_OR_RETURN(const DeviceBuffer y,
                   device.Allocate(DeviceBuffer::Kind::kDevice, size * sizeof(float)));
  kernels::DeviceGemmArgs args;
  args.x = x.as<Bf16Bits>();
  args.w = w.as<Bf16Bits>();
  args.y = y.as<float>();
  args.rows = args.n = args.k = kSide;
  args.multiprocessors = device.properties().multiprocessors;
  ASSIGN_OR_RETURN(const double ms, kernels::TimeInGraph(device, stream, {}, [&](int) {
                     device.ops().gemm(args, stream);
                   }));
  return 2.0 * kSide * static_cast<double>(size) / ms * 1e3;
}

}  // namespace

absl::StatusOr<MachineRoofs> MeasureDeviceRoofs(Device& device) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceStream> stream, device.NewStream());
  MachineRoofs roofs;
  ASSIGN_OR_RETURN(roofs.bytes_per_second, CopyBytesPerSecond(device, *stream));
  ASSIGN_OR_RETURN(roofs.flops, ProductFlops(device, *stream));
  roofs.int8_flops = roofs.flops;
  return roofs;
}

}  // namespace tandem::engine
