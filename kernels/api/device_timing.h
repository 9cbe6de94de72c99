// Times kernels on a device, and not the host that launches them.
//
// An event on an idle device marks when the host's launch arrives, so events around one short
// kernel time the launch. Here the device runs many calls from one graph between two events.
// Benchmarks and the search for tiles share this, so that their figures can be compared.
//
// Thread safety: the stream's. Owner: callers own device and stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/api/device.h"

namespace tandem::kernels {

// Fewest calls of one graph: enough to hide the launch of the graph behind them.
inline constexpr int kTimedCallsMin = 20;

struct TimedCalls {
  int calls = kTimedCallsMin;  // in one graph
  int runs = 5;                // of the graph that are timed
};

// Milliseconds of one call: the median over `runs` launches of a graph of `calls` calls. Before
// these, call 0 runs outside the graph, so that whatever loads at its first use loads there, and
// the graph runs once untimed.
// `enqueue(call)` enqueues one call on `stream`, with 0 <= call < calls. It gives calls different
// buffers where a real step would read from memory what this would read from a cache. Each buffer
// must stay as it is until the function returns. `enqueue` neither allocates nor synchronises.
// REQUIRES: calls > 0, runs > 0. Errors: the stream's, the graph's, the events'.
absl::StatusOr<double> TimeInGraph(Device& device, DeviceStream& stream, const TimedCalls& times,
                                   absl::FunctionRef<void(int call)> enqueue);

// The same without a graph: the median of `runs` calls that are timed one by one, after an untimed
// one. For calls that take milliseconds: copies of gigabytes are slower in a graph.
// `enqueue(call)` as above, with 0 <= call <= runs. REQUIRES: runs > 0.
absl::StatusOr<double> TimeOnStream(Device& device, DeviceStream& stream, int runs,
                                    absl::FunctionRef<void(int call)> enqueue);

// `count` bf16 values in device memory, drawn from `seed`: of either sign, between a quarter and a
// half or between one and two. Inputs for timing: devices multiply zeros faster. After 2^20 values
// they repeat. Errors: the device's.
absl::StatusOr<DeviceBuffer> NewTimingValues(Device& device, DeviceStream& stream, size_t count,
                                             uint32_t seed);

}  // namespace tandem::kernels
