#include "kernels/api/device_timing.h"

#include <algorithm>
#include <memory>
#include <vector>

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

absl::StatusOr<double> TimeOnStream(Device& device, DeviceStream& stream, const TimedCalls& times,
                                    absl::FunctionRef<void(int call)> enqueue) {
  return MedianOf(times.runs, device, stream, enqueue);
}

}  // namespace tandem::kernels
