#include "cli/bench/device_roofs.h"

#include <algorithm>
#include <memory>
#include <vector>

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

// bf16 values between a quarter and two of either sign: devices multiply zeros faster.
absl::StatusOr<DeviceBuffer> RandomValues(Device& device, DeviceStream& stream, size_t count) {
  uint32_t state = 1;
  std::vector<Bf16Bits> values(std::min<size_t>(count, 1 << 20));
  for (Bf16Bits& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<Bf16Bits>((state >> 16 & 0x817fu) | 0x3e80u);
  }
  ASSIGN_OR_RETURN(DeviceBuffer buffer,
                   device.Allocate(DeviceBuffer::Kind::kDevice, count * sizeof(Bf16Bits)));
  for (size_t done = 0; done < count; done += values.size()) {
    const size_t part = std::min(values.size(), count - done);
    stream.CopyIn(buffer.as<Bf16Bits>() + done, values.data(), part * sizeof(Bf16Bits));
  }
  RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

absl::StatusOr<double> CopyBytesPerSecond(Device& device, DeviceStream& stream) {
  ASSIGN_OR_RETURN(const DeviceBuffer from,
                   RandomValues(device, stream, kCopyBytes / sizeof(Bf16Bits)));
  ASSIGN_OR_RETURN(const DeviceBuffer to, device.Allocate(DeviceBuffer::Kind::kDevice, kCopyBytes));
  ASSIGN_OR_RETURN(const double ms, kernels::TimeOnStream(device, stream, {}, [&](int) {
                     stream.CopyWithin(to.data(), from.data(), kCopyBytes);
                   }));
  return 2.0 * static_cast<double>(kCopyBytes) / ms * 1e3;
}

absl::StatusOr<double> ProductFlops(Device& device, DeviceStream& stream) {
  const size_t size = size_t{kSide} * kSide;
  ASSIGN_OR_RETURN(const DeviceBuffer x, RandomValues(device, stream, size));
  ASSIGN_OR_RETURN(const DeviceBuffer w, RandomValues(device, stream, size));
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
