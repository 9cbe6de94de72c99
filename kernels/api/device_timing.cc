#include "kernels/api/device_timing.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace tandem::kernels {
namespace {

// One launch of the graph, in milliseconds.
absl::StatusOr<float> TimeLaunch(DeviceStream& stream, DeviceGraph& graph, DeviceEvent& begin,
                                 DeviceEvent& end) {
  stream.Record(begin);
  stream.Launch(graph);
  stream.Record(end);
  const absl::Status status = stream.Synchronize();
  if (!status.ok()) return status;
  return end.MillisecondsSince(begin);
}

}  // namespace

absl::StatusOr<double> TimeInGraph(Device& device, DeviceStream& stream, const TimedCalls& times,
                                   absl::FunctionRef<void(int call)> enqueue) {
  const absl::StatusOr<std::unique_ptr<DeviceEvent>> begin = device.NewEvent();
  if (!begin.ok()) return begin.status();
  const absl::StatusOr<std::unique_ptr<DeviceEvent>> end = device.NewEvent();
  if (!end.ok()) return end.status();
  enqueue(0);
  const absl::Status first = stream.Synchronize();
  if (!first.ok()) return first;
  const absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = stream.Capture([&] {
    for (int call = 0; call < times.calls; ++call) enqueue(call);
  });
  if (!graph.ok()) return graph.status();
  std::vector<float> milliseconds;
  for (int run = 0; run <= times.runs; ++run) {
    const absl::StatusOr<float> took = TimeLaunch(stream, **graph, **begin, **end);
    if (!took.ok()) return took.status();
    if (run > 0) milliseconds.push_back(*took);
  }
  const auto middle = milliseconds.begin() + times.runs / 2;
  std::nth_element(milliseconds.begin(), middle, milliseconds.end());
  return static_cast<double>(*middle) / times.calls;
}

}  // namespace tandem::kernels
