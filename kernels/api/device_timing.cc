#include "kernels/api/device_timing.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/api/bf16.h"

namespace tandem::kernels {
namespace {

// Runs `once` one time more than `runs`, and returns the median of all but the first, in
// milliseconds.
absl::StatusOr<double> MedianOf(int runs, Device& device, DeviceStream& stream,
                                absl::FunctionRef<void(int run)> once) {
  const absl::StatusOr<std::unique_ptr<DeviceEvent>> begin = device.NewEvent();
  if (!begin.ok()) return begin.status();
  const absl::StatusOr<std::unique_ptr<DeviceEvent>> end = device.NewEvent();
  if (!end.ok()) return end.status();
  std::vector<float> milliseconds;
  for (int run = 0; run <= runs; ++run) {
    stream.Record(**begin);
    once(run);
    stream.Record(**end);
    const absl::Status status = stream.Synchronize();
    if (!status.ok()) return status;
    const absl::StatusOr<float> took = (*end)->MillisecondsSince(**begin);
    if (!took.ok()) return took.status();
    if (run > 0) milliseconds.push_back(*took);
  }
  const auto middle = milliseconds.begin() + runs / 2;
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  return static_cast<double>(*middle);
}

}  // namespace

absl::StatusOr<double> TimeInGraph(Device& device, DeviceStream& stream, const TimedCalls& times,
                                   absl::FunctionRef<void(int call)> enqueue) {
  enqueue(0);
  const absl::Status first = stream.Synchronize();
  if (!first.ok()) return first;
  const absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = stream.Capture([&] {
    for (int call = 0; call < times.calls; ++call) enqueue(call);
  });
  if (!graph.ok()) return graph.status();
  const absl::StatusOr<double> all =
      MedianOf(times.runs, device, stream, [&](int) { stream.Launch(**graph); });
  return all.ok() ? *all / times.calls : all;
}

absl::StatusOr<double> TimeOnStream(Device& device, DeviceStream& stream, int runs,
                                    absl::FunctionRef<void(int call)> enqueue) {
  return MedianOf(runs, device, stream, enqueue);
}

absl::StatusOr<DeviceBuffer> NewTimingValues(Device& device, DeviceStream& stream, size_t count,
                                             uint32_t seed) {
  std::vector<Bf16Bits> values(std::min<size_t>(count, 1 << 20));
  uint32_t state = seed;
  for (Bf16Bits& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<Bf16Bits>((state >> 16 & 0x817fu) | 0x3e80u);
  }
  absl::StatusOr<DeviceBuffer> buffer =
      device.Allocate(DeviceBuffer::Kind::kDevice, count * sizeof(Bf16Bits));
  if (!buffer.ok()) return buffer;
  for (size_t done = 0; done < count; done += values.size()) {
    const size_t part = std::min(values.size(), count - done);
    stream.CopyIn(buffer->as<Bf16Bits>() + done, values.data(), part * sizeof(Bf16Bits));
  }
  const absl::Status status = stream.Synchronize();
  if (!status.ok()) return status;
  return buffer;
}

}  // namespace tandem::kernels
