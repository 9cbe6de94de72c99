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
    work(++seed_);
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
  Add([to, from, bytes, faults = &faults_](uint64_t seed) {
    std::memcpy(to, from, bytes);
    if (faults->count == 0 || bytes < faults->bytes_min) return;
    --faults->count;
    static_cast<char*>(to)[seed % bytes] ^= 1;
  });
}

void EmulatedStream::Fill(void* device, int byte, size_t bytes) {
  if (captured_ == nullptr) ++calls_.copies;
  Add([device, byte, bytes](uint64_t) { std::memset(device, byte, bytes); });
}

void EmulatedStream::Record(DeviceEvent& event) {
  ++calls_.events;
  if (clock_ != nullptr) static_cast<EmulatedEvent&>(event).recorded_ms = clock_();
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> EmulatedStream::Capture(
    absl::FunctionRef<void()> enqueue) {
  std::vector<Work> work;
  captured_ = &work;
  enqueue();
  captured_ = nullptr;
  return std::unique_ptr<DeviceGraph>(std::make_unique<EmulatedGraph>(std::move(work)));
}

void EmulatedStream::Launch(DeviceGraph& graph) {
  ++calls_.graphs;
  for (const Work& work : static_cast<EmulatedGraph&>(graph).work) Add(work);
}

absl::Status EmulatedStream::Synchronize() {
  ++calls_.synchronises;
  return absl::OkStatus();
}

}  // namespace tandem::kernels::emulated
