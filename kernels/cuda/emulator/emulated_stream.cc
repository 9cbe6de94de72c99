#include "kernels/cuda/emulator/emulated_stream.h"

#include <cstring>

namespace tandem::kernels::emulated {
namespace {

class EmulatedGraph final : public DeviceGraph {
 public:
  explicit EmulatedGraph(std::vector<Work> work) : work(std::move(work)) {}
  const std::vector<Work> work;
};

}  // namespace

absl::StatusOr<float> EmulatedEvent::MillisecondsSince(DeviceEvent& start) {
  const std::optional<float> from = static_cast<EmulatedEvent&>(start).recorded_ms;
  if (!recorded_ms.has_value() || !from.has_value()) {
    return absl::UnimplementedError("the emulated device has no clock");
  }
  return *recorded_ms - *from;
}

void StreamsOfDevice::RunHeld() {
  for (EmulatedStream* stream : streams) stream->RunHeld();
}

EmulatedStream::EmulatedStream(uint64_t seed, DeviceCalls* calls, CopyFaults* faults,
                               const Clock* clock, StreamsOfDevice* all)
    : seed_(seed), calls_(*calls), faults_(*faults), clock_(*clock), all_(*all) {
  all_.streams.insert(this);
}

EmulatedStream::~EmulatedStream() {
  RunHeld();
  all_.streams.erase(this);
}

void EmulatedStream::RunHeld() {
  if (!held_.has_value()) return;
  std::exchange(held_, std::nullopt)->Finish();
}

void EmulatedStream::Launch(int64_t blocks, Work work) {
  if (captured_ == nullptr) {
    ++calls_.kernels;
    calls_.blocks += blocks;
  }
  Add(std::move(work));
}

void EmulatedStream::Add(Work work) {
  if (captured_ != nullptr) {
    captured_->push_back(std::move(work));
  } else {
    RunOrHold(work);
  }
}

void EmulatedStream::RunOrHold(const Work& work) {
  const uint64_t seed = ++seed_;
  if (work.starts_early && held_.has_value()) {
    std::optional<Predecessor> before = std::exchange(held_, std::nullopt);
    work.run(seed, &*before);
    return;
  }
  RunHeld();
  // A step of splitmix64: neighbouring seeds draw differently.
  const uint64_t mixed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9u;
  if (work.is_kernel && all_.starts_early && mixed >> 63 != 0) {
    held_.emplace([run = work.run, seed] { run(seed, nullptr); });
  } else {
    work.run(seed, nullptr);
  }
}

void EmulatedStream::CopyIn(void* device, const void* host, size_t bytes) {
  if (captured_ == nullptr) calls_.bytes_in += static_cast<int64_t>(bytes);
  Copy(device, host, bytes);
}

void EmulatedStream::CopyOut(void* host, const void* device, size_t bytes) {
  if (captured_ == nullptr) calls_.bytes_out += static_cast<int64_t>(bytes);
  Copy(host, device, bytes);
}

void EmulatedStream::Copy(void* to, const void* from, size_t bytes) {
  if (captured_ == nullptr) ++calls_.copies;
  Add({[to, from, bytes, faults = &faults_](uint64_t seed, Predecessor*) {
    std::memcpy(to, from, bytes);
    if (faults->count == 0 || bytes < faults->bytes_min) return;
    --faults->count;
    static_cast<char*>(to)[seed % bytes] ^= 1;
  }});
}

void EmulatedStream::Fill(void* device, int byte, size_t bytes) {
  if (captured_ == nullptr) ++calls_.copies;
  Add({[device, byte, bytes](uint64_t, Predecessor*) { std::memset(device, byte, bytes); }});
}

void EmulatedStream::Record(DeviceEvent& event) {
  RunHeld();
  ++calls_.events;
  if (clock_ != nullptr) static_cast<EmulatedEvent&>(event).recorded_ms = clock_();
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> EmulatedStream::Capture(
    absl::FunctionRef<void()> enqueue) {
  std::vector<Work> work;
  captured_ = &work;
  enqueue();
  captured_ = nullptr;
  if (all_.refused_graphs > 0) {
    --all_.refused_graphs;
    return absl::ResourceExhaustedError("the emulated device has no memory for the graph");
  }
  return std::unique_ptr<DeviceGraph>(std::make_unique<EmulatedGraph>(std::move(work)));
}

void EmulatedStream::Launch(DeviceGraph& graph) {
  ++calls_.graphs;
  for (const Work& work : static_cast<EmulatedGraph&>(graph).work) Add(work);
}

absl::Status EmulatedStream::Synchronize() {
  RunHeld();
  ++calls_.synchronises;
  return absl::OkStatus();
}

}  // namespace tandem::kernels::emulated
